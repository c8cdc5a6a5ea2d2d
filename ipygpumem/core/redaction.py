"""Redaction of secrets in command lines and in lines of code.

In command lines, names, numbers and paths are kept. Source code, structured text, text that looks random, values of
options whose names suggest secrets, and ambiguous values are redacted. In lines of code, only literals, comments
and words that may contain secrets are redacted. All regular expressions take linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from ipygpumem.core.secrets.names import (
    MAX_WORD_LENGTH,
    NUMBER,
    PASSWORD_OPTION,
    PASSWORD_PROGRAM,
    is_secret_option,
    mentions_secret,
    names_secret,
    passes_password,
    reads_password,
    split_name,
)
from ipygpumem.core.secrets.random_text import KEY, is_generated, is_random
from ipygpumem.core.text import printable

_MAX_NAME_LENGTH, _MAX_LENGTH, _MAX_CODE_LENGTH = 60, 200, 10_000
_REDACTED = "***"
_CODE_OPTIONS = {"-c", "-e", "--eval", "--command", "--exec"}
_ADDRESS = re.compile(r"\b(addr|address|bind|endpoint|host|listen|server)\b")
_PORT = re.compile(r"\d{0,5}(\.\d{0,5})?")
_CONSTANT = re.compile(rf"{NUMBER.pattern}|[Tt]rue|[Ff]alse|[Nn]one|null")
_PLAIN = re.compile(r"([A-Za-z]:[/\\])?[\w./\\+~%*\[\]-]*")
_ALLOCATOR_SETTINGS = re.compile(
    r"(PYTORCH_(CUDA_|HIP_)?ALLOC_CONF=)?((backend|expandable|garbage|graph|large|max|per|pinned|release|roundup|throw)"
    r"[a-z0-9_]{,50}:(True|False|native|cudaMallocAsync|[\d.]{1,12}|\[[\d:>,]{1,300}\])(,|$))+"
)
_PROGRAM = re.compile(rf"([A-Za-z]:[/\\])?[\w./\\+~@-]*(:|::[\w.]+)?|{_ALLOCATOR_SETTINGS.pattern}")
_ABSOLUTE = re.compile(r"(~|\.{1,2}|[A-Za-z]:)?[/\\]")
_SUFFIX = re.compile(r"\.[a-z]\w{0,7}$")
_HOST = re.compile(r"(cuda|gpu|localhost|\*|\d{1,3}(\.\d{1,3}){3})?:\d{1,5}")
_NAMED_HOST = re.compile(r"[\w.-]+:\d{1,5}")
_VARIABLE = re.compile(r"[+~]{0,2}[A-Za-z_][\w./-]*")
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(=.*)?", re.DOTALL)
_URL = re.compile(r"([A-Za-z][\w+.-]{0,20}://)([^/?#]*@)?([\w.-]*(?::\d{1,5})?)(/[\w./~%+-]*)?(.*)", re.DOTALL)
_CODE_MAGIC = re.compile(
    r"%%?(capture|config|gpumem|lprun|memit|mprun|prun|px|time|timeit)\b"
    r"|(lprun|memit|mprun|prun|px|time|timeit) +(\w|[-!%](?=[^\s=]))"
)
_MAGIC_OPTION = re.compile(r"((?<=\s)(--[A-Za-z][\w-]{1,60})[=\s]\s{,9})[^\s=]\S*")
"""Pattern of an option with a value, as in ``%px --token x``. The magics of IPython Parallel have such options."""
_COMMAND = re.compile(r"[!%,;/]|(alias|conda|env|mamba|micromamba|pip3?|run|set_env|sql|sx|system|uv) +[\w./~-]")
"""Pattern of shell commands and magics, also without the percent sign, and of IPython's automatic calls."""
_CODE = r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|[^"'#])*?"""
_BEFORE_COMMAND = re.compile(rf"{_CODE}[=:;]\s*(?=[!%])")
_BEFORE_COMMAND_IN_MAGIC = re.compile(rf".{_CODE}(?<=[=\s])(?=[!%][^\s=])")
"""Patterns of code before a shell command or magic, as in ``files = !ls`` and ``%timeit -n1 !ls``."""
_QUOTED_WORD = re.compile(r"""(?:"[^"]*"?|'[^']*'?|[^\s"'])+""")
_BARE_KEY = re.compile(r"(?<![\w.-])keys?(?![\w-])")
"""Pattern of the names ``key`` and ``keys``, which suggest a secret unless the value is a word (``key="size"``)."""
_SHORT_OPTION = re.compile(r"""[\s"']-([pPu](?=[^"']|["'][^\s"'])|[A-Za-z]{1,8}[pP]\s+["']?[^\s"'-])""")
"""Pattern of a short option for a password or user in a string, also quoted or after others: ``"unzip -oP x"``."""
_WORD = re.compile(r"""["'][a-z_]{1,20}["']""")
_SPECIAL_TOKEN = re.compile(r"""["'](<[|/]?[a-z_]{1,20}\|?>|\[[A-Z]{3,4}\])["']""")
_REQUIREMENT = re.compile(r"[A-Za-z][\w.\[\]-]{0,60}[=<>~!]=\d[\w.]{0,20}")
_LITERAL = re.compile(
    r"(?<=://)[^\s@]{1,200}@|"  # a magic without the percent sign can be followed by a URL that is not in quotes
    r"""('{3}|"{3}|["'])(?:\\.|(?!\1).)*(?:\1)?|#.*|(?:(?<=[=:])|(?<=[=:]\s)|(?<=[=:]\s\s))\d[\w.]{3,}|\w{16,}""",
    re.DOTALL,
)


def redact_command(arguments: Sequence[str]) -> str:
    """Return a command as one line of at most 200 characters. Code is replaced with ``...``, secrets with ``***``."""
    words = list(islice(_words(arguments), _MAX_LENGTH))
    sign = next((i for i, word in enumerate(words) if word in {"|", "|&", ">", ">>"}), len(words))
    if sign > 1 and reads_password(" ".join(words[sign:])[:_MAX_CODE_LENGTH]):
        words[1:sign] = [_REDACTED]
    text = " ".join(_redact_words(iter(words)))
    return printable(text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…")


def redact_code(line: str, magics: str = "") -> str:
    """``magics`` contains the cell magics above the line."""
    if re.search("(?m)^%%(write)?file", magics) and mentions_secret(magics):
        return _REDACTED
    if KEY.fullmatch(line) or len(line) > _MAX_CODE_LENGTH:  # an API key that is not in quotes
        return _REDACTED
    start = _start_of_command(line) if all(map(_CODE_MAGIC.match, magics.splitlines())) else 0
    words = line[start:].lstrip("!%,;/")
    signs = line[start : len(line) - len(words)]
    head, sign, tail = re.split(r"(\||(?<! 2)>)", f"{words}|", maxsplit=1)  # the output of the command may be a secret
    if reads_password(tail):
        words = f"{' '.join(head.split()[:1])} {_REDACTED} {sign}{tail[:-1]}"
    return _redact_literals(line[:start], line) + signs + redact_command(_QUOTED_WORD.findall(words))


def _start_of_command(line: str) -> int:
    start = 0
    while magic := _CODE_MAGIC.match(line, start) or not _COMMAND.match(line, start):
        before = (_BEFORE_COMMAND if magic is True else _BEFORE_COMMAND_IN_MAGIC).match(line, start)
        if before is None:
            return len(line)
        start = before.end()
    return start


def _redact_literals(code: str, line: str) -> str:
    is_secret = mentions_secret(line)
    is_key = is_secret and not mentions_secret(_BARE_KEY.sub("", line))
    is_secret = is_secret or passes_password(line)

    def redact(match: re.Match[str]) -> str:
        quote = match[1] or ("# " if match[0].startswith("#") else "")
        if match[0].endswith("@") and not quote:
            return f"{_REDACTED}@"
        if not quote and not match[0][0].isdecimal():
            return _REDACTED if is_random(match[0], 32) else match[0]
        is_word = (is_key and _WORD.fullmatch(match[0])) or _SPECIAL_TOKEN.fullmatch(match[0])
        is_hidden = (is_secret and not is_word) or _may_contain_secret(match[0])
        return f"{quote}{_REDACTED}{match[1] or ''}" if is_hidden else match[0]

    def redact_option(match: re.Match[str]) -> str:
        return f"{match[1]}{_REDACTED}" if is_secret_option(match[2]) else match[0]

    if _CODE_MAGIC.match(code):
        code = _MAGIC_OPTION.sub(redact_option, code)
    return _LITERAL.sub(redact, code)


def short_name(arguments: Sequence[str]) -> str:
    words = _words(arguments)
    program = _file_name(next(words, ""))
    return printable(program + (_script(words) if "python" in program else ""))[:_MAX_NAME_LENGTH]


def _words(arguments: Sequence[str]) -> Iterator[str]:
    """A custom process title contains all words in the first argument."""
    yield from " ".join(arguments[:1]).split()
    yield from filter(None, arguments[1:])


def _script(words: Iterator[str]) -> str:
    for word in words:
        if word in {"-c", "-m"}:
            return " -c" if word == "-c" else f" -m {_redact(next(words, ''))}"
        if word in {"-X", "-W"}:
            next(words, "")
        elif not re.fullmatch(r"-[bBdEiIOPqRsSuvx]+|-[WX].+", word):
            return "" if word.startswith("-") else f" {_file_name(word)}"
    return ""


def _file_name(path: str) -> str:
    return _redact_program(path).replace("\\", "/").rpartition("/")[2]


def _redact_program(path: str) -> str:
    return _redact_directories(path) if len(path) <= MAX_WORD_LENGTH and _PROGRAM.fullmatch(path) else _REDACTED


def _redact_words(words: Iterator[str]) -> Iterator[str]:
    program = next(words, "")
    yield (text := _redact_program(program))
    # in a title, a secret has no quotes and may consist of several words
    is_secret = _is_secret_name(program, is_redacted=text != program)
    has_passwords = PASSWORD_PROGRAM.search(program) is not None  # as values of short options
    is_login = False  # whether a subcommand such as "login" suggests that a secret follows, possibly after options
    name = ""  # name of the option to which the next word may belong
    for word in words:
        if name in _CODE_OPTIONS and not NUMBER.fullmatch(word):
            yield "..."  # in a title, the end of the code is unknown
            return
        is_option = word.startswith("-") and len(word) > 1 and not NUMBER.fullmatch(word)
        belongs_to_secret = is_secret_option(name) and not re.match("--(no|use)-", name)
        if is_option and not _is_secret_name(program) and not belongs_to_secret:
            if has_passwords and PASSWORD_OPTION.match(word):
                text, name = (word, "--password") if len(word) == len("-x") else (f"{word[:2]}{_REDACTED}", "")
            else:
                text, name = _redact_option(word)
            is_secret = is_login or text.endswith(_REDACTED) or is_secret_option(name)
        else:
            text, name = _REDACTED if is_secret else _redact(word, name), ""
            has_passwords = has_passwords or PASSWORD_PROGRAM.search(word) is not None
            is_login = is_login or (not is_secret and _is_secret_name(word))
            is_secret = is_secret or text.endswith(f"={_REDACTED}") or (program == "net" and word == "use")
            is_secret = is_secret or _is_secret_name(word, is_redacted=text != word)
        yield text


def _redact_option(word: str) -> tuple[str, str]:
    match = _OPTION.fullmatch(word[:MAX_WORD_LENGTH])
    if match is None or is_random(match[1]):
        return ("--", "") if word == "--" else (_REDACTED, "")
    name, value = match.groups()
    if value is not None:
        return f"{name}={_redact(word[len(name) + 1 :], name)}", ""
    value = "" if name.startswith("--") else name[2:]  # value of a short option, or a name with one dash
    number = _PORT if name[1] in "pP" else NUMBER
    if number.fullmatch(value) or (name[1] not in "pPu" and re.fullmatch(r"[a-z_-]{1,12}", value)):
        return name, name
    return f"{name[:2]}{_REDACTED}", ""


def _redact(text: str, name: str = "") -> str:
    is_number = NUMBER.fullmatch(text) is not None
    if len(text) > MAX_WORD_LENGTH or is_secret_option(name, text):
        return _REDACTED
    if (name == "-U" and "%" in text) or (name in {"tokens", "--tokens"} and not is_number):  # may be USER%PASSWORD
        return _REDACTED
    is_short_option = name.startswith("-") and len(name) == len("-x") and name not in {"-m", "-q", "-U"}  # ambiguous
    is_password = name in {"-p", "-P"} and not _PORT.fullmatch(text)
    is_plain = not is_password and (is_number or _SUFFIX.search(text) or _HOST.fullmatch(text))
    if is_short_option and not is_plain and not _ABSOLUTE.match(text):
        return _REDACTED
    return _redact_value(text, name)


def _redact_value(text: str, name: str) -> str:
    if url := _URL.fullmatch(text):
        return _redact_url(*url.groups(""))
    if _HOST.fullmatch(text) or _ALLOCATOR_SETTINGS.fullmatch(text):
        return text
    if "," in text:
        return text if all(_redact(part, name) == part for part in text.split(",")) else _REDACTED
    if "=" in text:
        return _redact_assignment(text, is_option=bool(name))
    is_host = _ADDRESS.search(split_name(name)) and _NAMED_HOST.fullmatch(text)
    is_plain = _PLAIN.fullmatch(text) and not (_is_secret_name(text) and re.search(r"\d", text))
    if is_plain and _ABSOLUTE.match(text):
        return _redact_directories(text)
    return text if is_host or (is_plain and not is_random(text)) else _REDACTED


def _redact_assignment(text: str, *, is_option: bool) -> str:
    if _REQUIREMENT.fullmatch(text) and not is_random(text) and not names_secret(text):
        return text
    variable, _, value = text.partition("=")
    if not _VARIABLE.fullmatch(variable) or is_random(variable) or not value.strip("="):  # base64 ends with "="
        return _REDACTED
    is_shown = _CONSTANT.fullmatch(value) is not None if is_option else "=" not in value
    return f"{variable}={_redact(value, variable) if is_shown or _URL.match(value) else _REDACTED}"


def _redact_url(scheme: str, user: str, host: str, path: str, rest: str) -> str:
    if "@" in rest or is_random(host):  # it is unknown which part is the host
        return f"{scheme}{_REDACTED}"
    is_plain = not (rest or is_random(path) or "hook" in host + path or names_secret(path))
    return f"{scheme}{user and f'{_REDACTED}@'}{host}{path if is_plain else f'/{_REDACTED}'}"


def _redact_directories(path: str) -> str:
    path = KEY.sub(_REDACTED, path)
    return re.sub(r"[^/\\]+", lambda part: _REDACTED if is_random(part[0]) else part[0], path)


def _may_contain_secret(text: str) -> bool:
    if any(is_generated(word.strip("\"'")) for word in text.split()):
        return True
    words = re.split(r"[\s,;()\[\]{}<>|&?\"']+", text)
    if any(is_random(word) or word.endswith("==") or re.search(r"[:/][^@]*@", word[:200]) for word in words):
        return True
    return _SHORT_OPTION.search(text) is not None or mentions_secret(_BARE_KEY.sub("", text))


def _is_secret_name(word: str, *, is_redacted: bool = False) -> bool:
    name = re.fullmatch(r"[+~]?([\w./-]+):?", word.replace("-token.", ".token-"))  # as in "pypi-token.NAME"
    is_secret = name is not None and names_secret(re.split("[./]", name[1])[-1])
    return is_secret or word.endswith("<<<") or (is_redacted and names_secret(word))
