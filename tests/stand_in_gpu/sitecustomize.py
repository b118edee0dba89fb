"""Has torch compute CUDA tensors by `host_kernels` as soon as it is imported."""

import importlib.util
import sys
from importlib.abc import Loader, MetaPathFinder


class _Loading(Loader):
    def __init__(self, own):
        self._own = own

    def create_module(self, spec):
        return self._own.create_module(spec)

    def exec_module(self, module):
        self._own.exec_module(module)
        import host_kernels  # noqa: F401


class _Finding(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is not None:
            spec.loader = _Loading(spec.loader)
        return spec


sys.meta_path.insert(0, _Finding())
