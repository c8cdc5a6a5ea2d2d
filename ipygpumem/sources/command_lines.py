"""Redaction of secrets in command lines.

Names, numbers and paths are kept. Source code, structured text, text that looks random, values of options whose names
suggest secrets, and all ambiguous values are redacted, because the meaning of an argument depends on the program.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipygpumem.core.serialization import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_MAX_NAME_LENGTH = 60
_MAX_LENGTH = 200
_REDACTED = "***"
_CODE_OPTIONS = {"-c", "-e", "--eval", "--command", "--exec"}
_NAME_WORD = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z0-9]+")
_SECRET_NAME = re.compile(
    r"\b(auth|authentication|authorization|bearer|cookies?|creds?|headers?|jwt|keys?|login|pass|passcode|private|pw|sas"
    r"|signature)\b|(api|access|account|encryption|hf|license|master|openai|rsa|service|ssh|wandb) ?key|passw"
    r"|passphrase|secret|credential|pwd\b|token\b"
)
"""Pattern of names (split into words) that suggest a secret: ``hf token`` matches, but ``max tokens`` does not."""
_COUNT = re.compile(r"\b(count|dim|heads|layers|len|length|max|min|n|num|size)\b")
"""Words in names of numeric options such as ``--num_key_value_heads``. They take precedence over `_SECRET_NAME`."""
_NUMBER = re.compile(r"[-+]?\d{0,9}(\.\d{0,9})?([eE][-+]?\d{1,3})?%?")
_PLAIN = re.compile(r"[\w./\\:@,=+~%*\[\]-]*([?#]\*\*\*)?")
_PATH_OR_URL = re.compile(r"[\w./\\~:+-]*([/\\]|\.\w{1,8}$)[\w./\\~:+-]*|[A-Za-z][A-Za-z0-9+.-]*://.*")
_OPTION = re.compile(r"(--?[\w.-]+)(?:([=:])(.*))?", re.DOTALL)
_KEY = re.compile(
    r"(?<![A-Za-z0-9])((hf_|sk-|sk_|pk_|rk_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|ASIA|AIza|ya29\.|eyJ|npm_|pypi-"
    r"|dop_v1_|wandb_v1_|nvapi-|r8_)[\w.=+/-]{6,}|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z]))"
)
"""Pattern of API keys with a known prefix, and of UUIDs."""
_LONG = re.compile(r"[A-Za-z0-9]{20,}")
_MIN_CASE_CHANGES = 4


def redact_command(arguments: Sequence[str]) -> str:
    """Return a command as a single line, with source code replaced by ``...`` and possible secrets by ``***``."""
    is_title = len(arguments) == 1  # a custom process title is a single argument
    redacted = _redact_arguments(" ".join(arguments).split() if is_title else arguments, is_title=is_title)
    text = printable(" ".join(" ".join(argument.split()) for argument in redacted))
    return text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"


def short_name(arguments: Sequence[str]) -> str:
    """Return the names of a program and of its script or module, for example ``python train.py``."""
    parts = iter(arguments if len(arguments) > 1 else " ".join(arguments).split())
    program = _file_name(next(parts, ""))
    return printable(program + (_script(parts) if "python" in program else ""))[:_MAX_NAME_LENGTH]


def _script(arguments: Iterator[str]) -> str:
    for argument in arguments:
        if argument == "-m":
            return f" -m {_redact(next(arguments, ''))}"
        if argument == "-c":
            return " -c"
        if argument in {"-X", "-W"}:
            next(arguments, "")
        elif not argument.startswith("-"):
            return f" {_file_name(argument)}"
    return ""


def _file_name(path: str) -> str:
    return _redact(path).replace("\\", "/").rpartition("/")[2]


def _redact_arguments(arguments: Sequence[str], *, is_title: bool) -> Iterator[str]:
    name = ""  # name of the option or secret to which the next argument may belong
    for i, argument in enumerate(arguments):
        if i and name in _CODE_OPTIONS:
            yield "..."
            if is_title:  # the end of the code is unknown
                return
            name = ""
        elif argument.startswith("-") and len(argument) > 1 and not _NUMBER.fullmatch(argument):
            text, name = _redact_option(argument)
            yield text
            if is_title and not name and text.endswith(_REDACTED):
                name = "token"  # a title contains no quotes, so the next words may belong to the same value
        elif i == 0:  # the path of the program, whose directories may have any name
            yield _redact(argument) if "=" in argument or "://" in argument else _redact_random(argument)
        else:
            before, _, value = argument.partition("=")
            is_secret_name = _names_secret(before)
            follows_secret_name = _names_secret(name)
            yield _redact(argument, "" if follows_secret_name and is_secret_name and value else name)
            if not follows_secret_name:
                name = argument if is_secret_name and argument.isidentifier() else ""


def _redact_option(argument: str) -> tuple[str, str]:
    """Return a tuple ``(text, name)``: the redacted option and, if the next argument may be its value, its name."""
    match = _OPTION.fullmatch(argument)
    if match is None:
        return _REDACTED, "token"  # also redact the next argument
    name, sign, value = match.groups()
    if sign:
        return f"{_redact_random(name)}{sign}{_redact(value, name)}", ""
    value = "" if argument.startswith("--") else argument[2:]  # value of a short option, or a name with one dash
    if _NUMBER.fullmatch(value) or (argument[1] not in "pP" and re.fullmatch(r"[a-z_-]{1,8}", value)):
        return _redact_random(argument), argument
    return f"{argument[:2]}{_REDACTED}", ""


def _redact(text: str, name: str = "") -> str:
    """Redact the parts of a text that may be secret, or the whole text if ``name`` suggests a secret."""
    is_number = _NUMBER.fullmatch(text) is not None
    if _names_secret(name) and not (is_number and _COUNT.search(_words(name))):
        return _REDACTED
    is_short_option = name.startswith("-") and len(name) == len("-x") and name != "-m"  # ambiguous
    if is_short_option and not is_number and not _PATH_OR_URL.fullmatch(text):
        return _REDACTED
    if "://" in text:
        text = re.sub(r"(?<=://)\S*@", f"{_REDACTED}@", text)
        text = re.sub(r"(?<=[?#]).+", _REDACTED, text)
    name, _, value = text.partition("=")
    if value and _PLAIN.fullmatch(name):
        return f"{_redact(name)}={_redact(value, name)}"
    if not _PLAIN.fullmatch(text):
        return _REDACTED
    return ",".join(map(_redact, text.split(","))) if "," in text else _redact_random(text)


def _names_secret(name: str) -> bool:
    return name == "-H" or _SECRET_NAME.search(_words(name)) is not None


def _words(name: str) -> str:
    return " ".join(_NAME_WORD.findall(name)).lower()


def _redact_random(text: str) -> str:
    return _LONG.sub(lambda match: _REDACTED if _is_random(match.group()) else match.group(), _KEY.sub(_REDACTED, text))


def _is_random(text: str) -> bool:
    digits = sum(map(str.isdigit, text))
    case_changes = len(re.findall("[a-z](?=[A-Z])", text))
    return 0 < digits < len(text) or case_changes >= _MIN_CASE_CHANGES
