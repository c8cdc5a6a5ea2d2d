"""Search for the holders of tensors in host memory."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch

from ipygpumem.features.holders.reference_graph import SearchRoot
from ipygpumem.features.holders.search import search_holders

_sizes = itertools.count(5001, 4)


class TensorSearch:
    """A search for the storages of tensors whose number of elements no other test uses."""

    def __init__(self, elements):
        self.elements = elements

    def tensor(self, extra=0):
        return torch.zeros(self.elements + extra)

    def parameter(self):
        return torch.ones(self.elements, requires_grad=True)

    @staticmethod
    def distant_roots(*names):
        """Return roots that a search from the variables does not read: all modules except those with these names."""
        modules = [module for name, module in sys.modules.items() if name not in names]
        return [SearchRoot("", vars(module), "module", "names", distant=True) for module in modules]

    def result(self, variables, *roots, threads=False, limit=300.0, **options):
        """Return the result of a search from these variables. ``limit`` is a timeout in seconds for a busy machine."""
        roots = [SearchRoot("", variables, "variable", "names"), *roots]
        return search_holders(roots, torch, lambda device: device == "cpu", threads=threads, limit=limit, **options)

    def storages(self, variables, *roots, extra=0, nbytes=None, **options):
        nbytes = nbytes or (self.elements + extra) * 4
        storages = self.result(variables, *roots, **options).storages
        return [storage for storage in storages if storage.location.size == nbytes]

    def storage(self, variables, *roots, **options):
        (storage,) = self.storages(variables, *roots, **options)
        return storage


@pytest.fixture
def search():
    return TensorSearch(next(_sizes))
