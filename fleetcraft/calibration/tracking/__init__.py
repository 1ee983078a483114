"""What lives on the device when: every byte of a peak, and who owns it."""
