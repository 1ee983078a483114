"""What progress means: expected steps, alarms, a census of ranks, queues, throughput, ETA."""
