"""GPUs as the driver reports them. Only `nvml` imports the binding."""
