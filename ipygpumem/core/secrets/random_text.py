"""Recognition of text that looks random, such as API keys and generated passwords. All functions take linear time."""

from __future__ import annotations

import re
import string
from itertools import pairwise

_FREQUENT, _MIN_PART, _MIN_SUM = 0.3, 8, 20
KEY = re.compile(
    r"(?<![A-Za-z0-9])((api_org|gh[opsur]|hf|npm|r8)_[A-Za-z0-9]{12,}|[prs]k_(live|prod|test)_|sk-[\w-]{12,}"
    r"|A3-[A-Z0-9]{6}-[A-Z0-9-]*|(A[KS]IA|AIza|dop_v1_|eyJ|github_pat_|gl(cbt|dt|ff?c?t|imt|pat|ptt|rt|soat)-|hv[bs]\."
    r"|lin_api_|nvapi-|pscale_|pypi-AgE|SG\.|shp[a-z]{2}_|sq0[a-z]{3}-|tskey-|wandb_v1_|xapp-|xox[a-z]-|ya29\.)[\w.+/\\-]{6,}"
    r"|[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}(?![0-9A-Za-z])"
    r"|(?<![+./_-])(?=\S{,39}[a-z])(?=\S{,39}[A-Z])(?=\S{,39}\d)[A-Za-z0-9+][A-Za-z0-9+/]{39}(?![\w+./=-]))"
)
"""Pattern of API keys with a known prefix, of UUIDs, and of secret access keys of AWS."""
_CHANGE = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z])(?=\d)|(?<=\d)(?=[A-Za-z])")
"""Positions between lowercase and uppercase letters, and between letters and digits. Random text has many of them."""
_CONSONANTS = re.compile(r"[b-df-hj-np-tv-xz]{6}", re.IGNORECASE)
_DASHED = re.compile(r"(?=.*[A-Z])(?=.*\d)[A-Za-z\d]{6}(-[A-Za-z\d]{6}){2}")
"""Pattern of the passwords that Apple's devices suggest, such as ``gert4y-raThoz-veqhud``."""
_ORDINARY = re.compile(
    r"#[0-9a-fA-F]{3,8}|0x[0-9a-fA-F]+|\$[^$]+\$|[\w.,() ]+->[\w.,() ]*|\d+(x\d+)+|[A-Z]{2,}(_[A-Z]+)*_?\d*"
    r"|b?float\d{1,2}(_\w{,12})?|[A-Za-z][\w.]{,40}/[A-Za-z][\w.]{,60}(-[\w.]{1,60}){1,12}"
)
"""Pattern of colors, hexadecimal numbers, LaTeX formulas, einsum expressions, shapes, names of constants, data types,
and models on Hugging Face's hub such as ``Qwen/Qwen2-VL-7B``."""
_EXPRESSION = re.compile(r"\(\?|\.\*|\[[a-z]-|\\[dswDSWb]|[^@]://")
"""Pattern of parts of regular expressions and URLs."""
_FORMAT = re.compile(
    r"%(\([a-z_]{1,60}\))?[-+0 #]?\d{,9}(\.\d{1,9})?[A-Za-z%]|\{[^{}\s]{,60}\}|\\[A-Za-z]+|\\.|\[\^?\w-\w[^\]]{,60}\]"
    r"|(?<![A-Za-z0-9])\d+[A-Za-z](?![A-Za-z0-9])"
)
"""Pattern of format specifications, escape sequences, sets of characters, and numbers with a unit, as in ``7B``."""
_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z][a-z]{2}|[A-Z]{2,}(?![a-z]))")
"""Positions between the words of a name such as ``AutoModel`` or ``CausalLM``."""
_COMMON_GROUPS = (
    "abcdgilmnprstuy baeflo caehiklort dabeiot eacdefglmnprstx faefiopu geiprs haefiot iacdefglmnoprstvz kesv"
    " ladeilmostu mabeiopu nacdefginostuv ocdklmnoprstuvw paeiloprty quw radegimnorsty sacehiopstu tacehioprstuy"
    " uelmnprst vaei wains xlpt ypst ze"
)
_COMMON_PAIRS = {group[0] + letter for group in _COMMON_GROUPS.split() for letter in group[1:]}
"""Pairs of letters that are common in names: the first letter of each group with each of its other letters."""
_KINDS = {
    **dict.fromkeys(string.ascii_lowercase, "a"),
    **dict.fromkeys(string.ascii_uppercase, "A"),
    **dict.fromkeys(string.digits, "1"),
    **dict.fromkeys("_-./", "-"),
    **dict.fromkeys(":,=+()[]{}<>\"' ", ","),
    **dict.fromkeys("!#$%&*;?@\\^`|~", "#"),
}
_WEIGHTS = {
    "aa+": -0.6,
    "aa": 1.0,
    "Aa+": 0.2,
    "Aa": 2.0,
    "AA": 1.1,
    "aA": 2.5,
    "a1": 0.3,
    "A1": 0.9,
    "1a": 1.8,
    "1A": 2.1,
} | {"11": -0.9, "-": -0.1, ",": 0.2, "#": 0.8, "same": -0.5}
"""Logarithms of the ratio of frequencies of pairs of characters in generated passwords and in strings of code.

The kinds of characters are those of `_KINDS`; ``+`` marks pairs of letters that are common in names. The weights were
fitted to passwords with different symbols and to strings in the source code of Python packages.
"""
_THRESHOLD, _NAME_THRESHOLD, _MIXED_THRESHOLD = 3.4, 4.4, 2.0
"""Scores above which a string is considered a generated password: with symbols, without symbols, and with symbols,
digits and letters of both cases."""


def is_random(text: str, min_length: int = 16) -> bool:
    """Return whether a string contains an API key, or letters and digits that look random.

    Parts shorter than ``min_length`` look random only if they often switch between letters and digits or between cases.
    """
    parts = re.findall(r"[A-Za-z0-9]+", text)
    length = sum(map(len, parts))
    if KEY.search(text) or (length >= _MIN_SUM and len(_CHANGE.findall(text)) > _FREQUENT * length):
        return True
    for part in parts:
        changes = len(_CHANGE.findall(part))
        has_digits = re.search(r"\d", part) is not None
        is_unpronounceable = changes * 5 >= len(part) or _CONSONANTS.search(part)
        is_frequent = changes >= _FREQUENT * len(part) or (has_digits and 4 * changes >= min_length)
        is_long = len(part) >= min_length and (has_digits or is_unpronounceable)
        if is_long or (len(part) >= _MIN_PART and is_frequent):
            return True
    return False


def is_generated(word: str) -> bool:
    """Return whether a string without spaces looks like a password from a password generator.

    Each pair of adjacent characters contributes the logarithm of the ratio of its frequency in generated passwords to
    its frequency in strings of source code.
    """
    if len(word) < _MIN_PART or _ORDINARY.fullmatch(word) or _EXPRESSION.search(word):
        return False
    text = _BOUNDARY.sub(" ", _FORMAT.sub(" ", word))
    kinds = {_KINDS.get(character, "") for character in text}
    threshold = _THRESHOLD if kinds & {"#", ","} else _NAME_THRESHOLD
    threshold = _MIXED_THRESHOLD if kinds >= set("aA1#") else threshold
    score = sum(_WEIGHTS.get(_pair(*pair), 0) for pair in pairwise(text))
    return score > threshold or _DASHED.fullmatch(word) is not None


def _pair(first: str, second: str) -> str:
    """Return the kinds of two adjacent characters, as in `_WEIGHTS`."""
    kinds = _KINDS.get(first, "") + _KINDS.get(second, "")
    if kinds in {"aa", "Aa", "AA"}:
        return kinds + "+" * ((first + second).lower() in _COMMON_PAIRS)
    symbol = next((symbol for symbol in "#,-" if symbol in kinds), "")
    return "same" if symbol and first == second else symbol or kinds
