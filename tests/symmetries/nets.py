"""Small nets of every family, by name; each file of nets adds its own."""

import nets_algebra  # noqa: F401
import nets_attention  # noqa: F401
import nets_experts  # noqa: F401
import nets_images  # noqa: F401
import nets_language  # noqa: F401
import nets_layers  # noqa: F401
import nets_odd  # noqa: F401
import nets_recurrent  # noqa: F401
from net_family import FAMILIES

__all__ = ["FAMILIES"]
