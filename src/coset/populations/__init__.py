"""Many networks of one architecture: collected, kept, measured, and compared with others."""
