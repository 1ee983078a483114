"""GPUs as the driver reports them: which ones this process may use, by UUID.

Only `nvml` imports the binding. Invariant: a device that the driver did not name does not exist.
"""
