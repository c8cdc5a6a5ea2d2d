"""Variables in the paths that magics take."""

from __future__ import annotations

import platform
import re
import time
from typing import Any

from IPython.utils.text import EvalFormatter

from ipygpumem.core.errors import OptionError
from ipygpumem.features.ranks.rank_info import rank_and_world

__all__ = ["filled"]


def filled(shell: Any, text: str) -> str:
    """A path with ``{name}`` replaced by variables of the notebook.

    ``{host}`` is the name of the machine, ``{time}`` the current time, and ``{rank}``, unless it is a variable, the
    rank of this process or the number of the engine.

    Raises:
        OptionError: A name cannot be filled in, or is written ``$name``, as for IPython's own magics.
    """
    for name in re.findall(r"\$([A-Za-z_]\w*)", text):
        if name in shell.user_ns:
            raise OptionError(f"{text!r} contains ${name}: write {{{name}}} to insert the value of the variable")
    if "{" not in text:
        return text
    rank = rank_and_world()[0]
    names: dict[str, Any] = {} if rank is None else {"rank": rank}
    names = {**names, **shell.user_ns, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    try:
        return str(EvalFormatter().vformat(text, [], names))
    except Exception as error:
        raise OptionError(f"{text!r} cannot be expanded ({type(error).__name__}: {error})") from error
