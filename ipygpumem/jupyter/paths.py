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

_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)")


def filled(shell: Any, text: str) -> str:
    """A path with ``{name}`` and ``$name`` replaced by variables of the notebook.

    ``{host}`` is the name of the machine, ``{time}`` the current time, and ``{rank}``, unless it is a variable, the
    rank of this process or the number of the engine. As in IPython's own magics, a ``$name`` that is not a variable
    stays.

    Raises:
        OptionError: A name cannot be filled in.
    """
    text = _DOLLAR.sub(lambda match: f"{{{match[1]}}}" if match[1] in shell.user_ns else match[0], text)
    if "{" not in text:
        return text
    rank = rank_and_world()[0]
    names: dict[str, Any] = {} if rank is None else {"rank": rank}
    names = {**names, **shell.user_ns, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    try:
        return str(EvalFormatter().vformat(text, [], names))
    except Exception as error:
        raise OptionError(f"{text!r} cannot be expanded ({type(error).__name__}: {error})") from error
