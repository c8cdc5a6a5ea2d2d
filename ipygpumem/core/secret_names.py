"""Names of options, variables and subcommands that suggest a secret."""

from __future__ import annotations

import re

MAX_WORD_LENGTH = 1000
"""Length in characters of the part of a name that is examined. Longer words of commands are redacted."""
NUMBER = re.compile(r"[-+]?\d{0,9}(\.\d{0,9})?([eE][-+]?\d{1,3})?%?")
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_NAME = re.compile(
    r"\b(o?auth|authentication|authorization|bearer|clave|contrasena|cookies?|creds?|[cx]srf|dsn|encrypt|haslo|headers?"
    r"|heslo|hmac|jwt|kennwort|(?<!primary )keys?(?! (cache|heads|value))|literal|login|mfa|mnemonic|netrc|obscure"
    r"|passcode|passe|pat|pin(?! memory)|private|psk|psw|salt|sas|secr|senha|session ?id|signature|unlock|unseal|vault"
    r"|wachtwoord|(web)?hook)\b"
    r"|(aes|anthropic|api|access|account|app|auth|aws|client|cohere|consumer|\bdb|deploy|encryption|gcp|gemini|git|gpg"
    r"|groq|hf|host|jwt|kaggle|license|master|mistral|openai|pass|priv|private|\broot|rsa|secret|seed|service|session"
    r"|shared|\bsign|signing|ssh|ssl|storage|subscription|tls|unseal|wandb) ?key"
    r"|(access|activation|recovery|unlock) ?code|token ?value|\bconn(ection)? ?str(ing)?\b|(?<!by)(?<!com)pass\b"
    r"|auth\b|keyfile|passw|phrase\b|secret|credential|otp\b|p[as]*wo?r?d\b|pw\b"
    r"|(access|api|auth|bot|hf|refresh|session) tokens\b"
    r"|(?<!\bpad )(?<!\b[be]os )(?<!\bcls )(?<!\bunk )(?<!\bmask )(?<!\bsep )(?<!\btik)token\b"
    r"(?! (classification|count|embedding|ids|length|type))"
)
"""Pattern of names (split into words) that suggest a secret: ``hf token`` matches, but ``max tokens`` does not."""
_SECRET_OPTION = re.compile(
    r"\b(mdp|motdepasse|parola|pasw|sess|session|sid)$|(?<!tik)tok$"
    r"|(?<!\bdon)(?<!\bhoc)(?<!\bhot)(?<!\bmon)(?<!\btur)key$"
)
"""Pattern of names that suggest a secret only if they are names of options or environment variables."""
_COUNT = re.compile(r"\b(count|dim|heads|layers|len|length|max|min|n|num|size)\b")
"""Words in names of numeric options such as ``--num_key_value_heads``."""


def mentions_secret(text: str) -> bool:
    return names_secret(text) or any(map(names_secret, re.findall(r"[\w -]+", text)))


def names_secret(name: str) -> bool:
    return name == "-H" or _SECRET_NAME.search(split_name(name)) is not None


def is_secret_option(name: str, value: str = "") -> bool:
    """Numeric values of options such as ``--num_key_value_heads`` are not secrets."""
    text = split_name(name)
    is_count = _COUNT.search(text) is not None
    if is_count and NUMBER.fullmatch(value) and value:
        return False
    return names_secret(name) or (not is_count and _SECRET_OPTION.search(text) is not None)


def split_name(name: str) -> str:
    """Return the words of a name in lowercase, separated by spaces: ``--apiKey`` becomes ``api key``."""
    return " ".join(_NAME_WORD.findall(name[:MAX_WORD_LENGTH])).lower()
