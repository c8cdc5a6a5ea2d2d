"""Command lines with secrets redacted; in doubt a value is redacted.

The meaning of an argument depends on the program. So arguments are shown if they look like plain names, numbers and
paths, values of options depending on the option's name; code, structured text and random-looking text are not shown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipygpumem.core.from_dict import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["redact_command", "short_name"]

_MAX_NAME_LENGTH = 60
_MAX_LENGTH = 200
_REDACTED = "***"
_CODE_OPTIONS = {"-c", "-e", "--eval", "--command", "--exec"}
_WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_SECRET_WORD = re.compile(
    r"auth|authentication|authorization|bearer|cookies?|creds?|credentials?|headers?|jwt|keys?|login|pass|passcode"
    r"|passphrase|passwd|password|private|pw|pwd|sas|secrets?|signature|token"
)
_SECRET_PART = re.compile(
    r"(api|access|account|encryption|hf|license|master|openai|rsa|service|ssh|wandb)_?key|passw|passphrase|secret"
    r"|credential|(token|pwd)$"
)
_COUNT_WORDS = frozenset({"count", "dim", "heads", "layers", "len", "length", "max", "min", "n", "num", "size"})
"""Words in names whose value is a number: --num_key_value_heads 8."""
_NUMBER = re.compile(r"[-+]?\d{0,9}(\.\d{0,9})?([eE][-+]?\d{1,3})?%?")
_PLAIN = re.compile(r"[\w./\\:@,+~%*\[\]-]*")
_PATH = re.compile(r"[\w./\\~:+-]*([/\\]|\.\w{1,8}$)[\w./\\~:+-]*")
_SHORT_OPTION = re.compile(r"-.")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LOGIN = re.compile(r"(://)\S*@")
_KEY_PREFIX = re.compile(
    r"(?<![A-Za-z0-9])(hf_|sk-|sk_|pk_|rk_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ|npm_|pypi-"
    r"|dop_v1_|wandb_v1_|nvapi-|r8_)[\w.=+/-]{6,}"
)
_UUID = re.compile(r"(?<![0-9A-Za-z])[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])")
_LONG = re.compile(r"[A-Za-z0-9]{20,}")
_MIN_CASE_CHANGES = 4


def redact_command(arguments: Sequence[str]) -> str:
    """Return a command on one line, with code as ``...`` and what may be a secret as ``***``."""
    is_title = len(arguments) == 1  # a program that sets its process title has it all in one argument
    redacted = _redact_arguments(" ".join(arguments).split() if is_title else arguments, is_title=is_title)
    text = printable(" ".join(" ".join(argument.split()) for argument in redacted))
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def short_name(arguments: Sequence[str]) -> str:
    """Return program and script: ``python train.py``, ``python -m ipykernel_launcher``."""
    parts = list(arguments if len(arguments) > 1 else " ".join(arguments).split())
    program = _file_name(_redact(parts[0])) if parts else ""
    options = iter(parts[1:] if "python" in program else ())
    script = ""
    for argument in options:
        if argument == "-m":
            script = f" -m {_redact(next(options, ''))}"
        elif argument == "-c":
            script = " -c"
        elif argument in {"-X", "-W"}:
            next(options, "")
        elif not argument.startswith("-"):
            script = f" {_file_name(_redact(argument))}"
        if script:
            break
    return printable(program + script)[:_MAX_NAME_LENGTH]


def _redact_arguments(arguments: Sequence[str], *, is_title: bool) -> Iterator[str]:
    option = announcing = ""  # the names of an option and of a secret whose values may follow
    for i, argument in enumerate(arguments):
        if i and option in _CODE_OPTIONS:
            yield "..."
            if is_title:  # the end of the code is unknown
                return
            option = announcing = ""
        elif argument.startswith("-") and len(argument) > 1 and not _NUMBER.fullmatch(argument):
            text, option = _redact_option(argument)
            yield text
            announcing = option if _names_secret(option) else ""
            if is_title and not option and text.endswith(_REDACTED):
                announcing = "token"  # a title has no quotes: the next words may belong to the same value
        elif i == 0:  # the program: its folders may have any name
            yield _redact(argument) if "=" in argument or "://" in argument else _redact_random(argument)
        elif announcing:
            is_assignment = "=" in argument and _names_secret(argument.partition("=")[0])
            yield _redact_assignment(argument) if is_assignment else _redact_value(announcing, argument)
        elif option:
            yield _redact_value(option, argument)
            option = ""
        else:
            yield _redact(argument)
            announcing = argument if argument.isidentifier() and _names_secret(argument) else ""


def _redact_option(argument: str) -> tuple[str, str]:
    """Return an option as text, and its name if its value is the next argument."""
    match = re.match(r"(--?[\w.-]+?)([=:])(.*)", argument, re.DOTALL)
    if match is not None:
        name, sign, value = match.groups()
        return f"{name}{sign}{_redact_value(name, value)}", ""
    if argument.startswith("--") or _SHORT_OPTION.fullmatch(argument):
        plain = re.fullmatch(r"--?[\w.-]+", argument) is not None
        return (_redact_random(argument), argument) if plain else (_REDACTED, argument)
    value = argument[2:]  # of a short option, or a long name after one dash
    if _NUMBER.fullmatch(value) or (argument[1] not in "pP" and re.fullmatch(r"[a-z_-]{1,8}", value)):
        return argument, argument
    return f"{argument[:2]}{_REDACTED}", ""


def _redact_value(name: str, value: str) -> str:
    """Redact a value if its name announces a secret, or is a short option that may mean anything."""
    is_number = _NUMBER.fullmatch(value) is not None
    if _names_secret(name) and not (is_number and _COUNT_WORDS.intersection(_name_words(name))):
        return _REDACTED
    is_plain = is_number or _PATH.fullmatch(value) or _URL.match(value)
    return _REDACTED if _SHORT_OPTION.fullmatch(name) and name != "-m" and not is_plain else _redact(value)


def _redact(argument: str) -> str:
    """Return a plain name, number or path unchanged; redact what else it contains."""
    if "://" in argument:
        argument = _LOGIN.sub(rf"\1{_REDACTED}@", argument)
        url, query, _ = argument.partition("?")
        url, fragment, _ = url.partition("#")
        return _redact_random(url) + (f"?{_REDACTED}" if query else f"#{_REDACTED}" if fragment else "")
    if "=" in argument:
        parts = re.split(r"([,;&?])", argument)
        return "".join(part if part in {",", ";", "&", "?"} else _redact_assignment(part) for part in parts)
    return _redact_random(argument) if _PLAIN.fullmatch(argument) else _REDACTED


def _redact_assignment(text: str) -> str:
    name, equals, value = text.partition("=")
    if not equals:
        return _redact_random(text) if _PLAIN.fullmatch(text) else _REDACTED
    if not _PLAIN.fullmatch(name):
        return _REDACTED
    return f"{name}={_redact_value(name, value)}" if value else text


def _name_words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name)]


def _names_secret(name: str) -> bool:
    """Return whether a name announces a secret: ``--hf_token``, but not ``--max_tokens``."""
    words = _name_words(name)
    has_secret_word = any(_SECRET_WORD.fullmatch(word) for word in words)
    return has_secret_word or _SECRET_PART.search("_".join(words)) is not None or name == "-H"


def _redact_random(text: str) -> str:
    """Redact what looks like a key: it has a known prefix, or is long and random."""
    text = _UUID.sub(_REDACTED, _KEY_PREFIX.sub(_REDACTED, text))
    return _LONG.sub(lambda match: _REDACTED if _is_random(match.group()) else match.group(), text)


def _is_random(text: str) -> bool:
    digits = sum(map(str.isdigit, text))
    case_changes = len(re.findall("[a-z](?=[A-Z])", text))
    return 0 < digits < len(text) or case_changes >= _MIN_CASE_CHANGES


def _file_name(path: str) -> str:
    return path.replace("\\", "/").rpartition("/")[2]
