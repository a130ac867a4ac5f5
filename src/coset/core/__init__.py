"""What every room stands on: states, files, devices, errors, progress, and work that can be resumed."""
