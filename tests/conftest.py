"""One thread: everything here is small, and tests run in two processes."""

import torch

torch.set_num_threads(1)
