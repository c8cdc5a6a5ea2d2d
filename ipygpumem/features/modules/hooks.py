"""Hooks for module calls and optimizer steps that do not affect torch.compile."""

from __future__ import annotations

import contextlib
import sys
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from ipygpumem.measurement.compiled_graphs import CompiledGraphObservers
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.dynamo import skip_in_dynamo, without_dynamo
from ipygpumem.sources.pytorch import CallObservers, FunctionWrappers, remove_own_frames

_MODULE = "torch.nn.modules.module"
_CHECK = "_has_any_global_hook"
_COMPILED_CALL = "_compiled_call_impl"
_ALL_TABLES = tuple(f"_global_{kind}_hooks" for kind in ("backward_pre", "backward", "forward", "forward_pre"))
_OUR_TABLES = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called")


class GlobalHooks:
    """The global forward hooks of ipygpumem, which are hidden from torch.compile.

    torch.compile warns about global hooks and recompiles code when hooks that existed during compilation are removed.
    Therefore, PyTorch's check for global hooks ignores these hooks, and they are unregistered during compilation.
    """

    def __init__(self) -> None:
        self._handles: dict[int, Any] = {}  # by id
        self._functions = FunctionWrappers(_MODULE)
        self._torch_functions = FunctionWrappers("torch")
        self._compile_callbacks: Any = None
        self._hidden: list[tuple[Any, int, Any]] = []

    def add(self, before: Any, after: Any) -> list[Any]:
        module: Any = sys.modules[_MODULE]
        handles = [
            module.register_module_forward_pre_hook(without_dynamo(before)),
            module.register_module_forward_hook(without_dynamo(after), always_call=True),
        ]
        self._handles |= {handle.id: handle for handle in handles}
        self._functions.wrap({_CHECK: without_dynamo(lambda _: self._has_other_hook())})
        self._torch_functions.wrap({"compile": self._compile})
        self._observe_compilation()
        return handles

    def _compile(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        result = original(*arguments, **options)
        self._observe_compilation()  # the call has imported Dynamo
        return result

    def _observe_compilation(self) -> None:
        # older versions of PyTorch have no callbacks
        callbacks: Any = getattr(sys.modules.get("torch._dynamo.callback"), "callback_handler", None)
        if self._compile_callbacks is None and hasattr(callbacks, "remove_end_callback"):
            hide, restore = without_dynamo(self._hide), without_dynamo(self._restore)
            callbacks.register_start_callback(hide)
            callbacks.register_end_callback(restore)
            self._compile_callbacks = callbacks, hide, restore

    def remove(self, handles: list[Any]) -> None:
        for handle in handles:
            handle.remove()
            self._handles.pop(handle.id, None)
        if self._handles:
            return
        if self._compile_callbacks is not None:
            callbacks, hide, restore = self._compile_callbacks
            with contextlib.suppress(ValueError):  # torch._dynamo.reset() has removed them
                callbacks.remove_start_callback(hide)
                callbacks.remove_end_callback(restore)
            self._compile_callbacks = None
        self._torch_functions.unwrap("compile")
        self._functions.unwrap(_CHECK)

    def close(self) -> None:
        self.remove(list(self._handles.values()))

    def _hide(self, *_: Any) -> None:
        module = sys.modules[_MODULE]
        for table in (getattr(module, name, {}) for name in _OUR_TABLES):
            self._hidden += [(table, key, table.pop(key)) for key in list(table) if key in self._handles]

    def _restore(self, *_: Any) -> None:
        hidden_hooks, self._hidden = self._hidden, []
        for table, hook_id, hook in hidden_hooks:
            if hook_id in self._handles:
                table[hook_id] = hook
        with contextlib.suppress(Exception):
            current().state(CompiledGraphObservers).wrap_new_graphs()

    def _has_other_hook(self) -> bool:
        module = sys.modules[_MODULE]
        return any(hook_id not in self._handles for name in _ALL_TABLES for hook_id in getattr(module, name, ()))


def cause_recompilation() -> bool:
    """Return whether global hooks cause recompilation, because this version of PyTorch does not check for them."""
    return not hasattr(sys.modules[_MODULE], _CHECK)


def wrap_compiled_call(module: Any, enter: Callable[[], None], leave: Callable[[], None]) -> Callable[[], None] | None:
    """Add hooks to a module that ``Module.compile`` has compiled.

    Returns a function that removes the hooks, or None if the module is not compiled.
    """
    compiled = vars(module).get(_COMPILED_CALL)
    if compiled is None:
        return None

    enter, leave = without_dynamo(enter), without_dynamo(leave)

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):
            enter()
        try:
            return compiled(*args, **kwargs)
        except BaseException as error:
            remove_own_frames(error)
            raise
        finally:
            with contextlib.suppress(Exception):
                leave()

    wrapper.__wrapped__ = compiled  # type: ignore[attr-defined]
    wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip_in_dynamo(wrapper)
    setattr(module, _COMPILED_CALL, wrapper)
    module_ref, wrapper_ref = weakref.ref(module), weakref.ref(wrapper)

    def unwrap() -> None:
        module, wrapper = module_ref(), wrapper_ref()
        if module is not None and wrapper is not None and vars(module).get(_COMPILED_CALL) is wrapper:
            setattr(module, _COMPILED_CALL, wrapper.__wrapped__)  # type: ignore[attr-defined]

    return unwrap


class OptimizerStepObservers(CallObservers):
    """Observers of optimizer steps, which are notified when the profiler range of a step begins and ends.

    PyTorch's hooks for optimizer steps are not used, because torch.compile would recompile compiled optimizers if such
    hooks exist. In contrast, torch.compile ignores profiler ranges.
    """

    def __init__(self) -> None:
        ranges = "torch.autograd.profiler:record_function"
        super().__init__(ranges, before=("__enter__",), after=("__exit__",), ignored=(Exception,))

    def _call(self, name: str, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        if arguments[0].name.startswith("Optimizer.step#"):
            return super()._call(name, original, *arguments, **options)
        return original(*arguments, **options)


def running_optimizer() -> Any:
    optimizers = vars(sys.modules["torch.optim.optimizer"])
    for frame, _ in traceback.walk_stack(sys._getframe()):
        if frame.f_globals is optimizers and frame.f_code.co_name == "wrapper":
            return frame.f_locals["self"]
    return None
