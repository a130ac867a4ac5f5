"""One small rule for each family of ops. Importing this package imports every file in it, so a new file is enough."""

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
