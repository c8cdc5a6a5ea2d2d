"""Names of options, variables and subcommands that suggest a secret, and commands that read a password."""

from __future__ import annotations

import re

MAX_WORD_LENGTH = 1000
"""Number of characters of a name that are examined. Longer words of commands are redacted."""
NUMBER = re.compile(r"[-+]?\d{0,9}(\.\d{0,9})?([eE][-+]?\d{1,3})?%?")
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_SECRET_NAME = re.compile(
    r"\b(o?auth|authentication|authorization|bearer|clave|contrasena|cookies?|creds?|[cx]srf|dsn|encrypt|haslo"
    r"|headers?|heslo|hmac|identified by|jwt|kennwort|keyring|(?<!primary )keys?(?! (cache|heads|value))|literal"
    r"|login|mfa|mnemonic|netrc|obscure|passcode|passe|pat|pin(?! memory)|private|psk|psw|salt|sas|secr|senha"
    r"|session ?id|signature|unlock|unseal|vault|wachtwoord|(web)?hook)\b"
    r"|(aes|anthropic|api|access|account|app|auth|aws|client|cohere|consumer|\bdb|deploy|encryption|gcp|gemini|git|gpg"
    r"|groq|hf|host|jwt|kaggle|license|master|mistral|openai|pass|priv|private|\broot|rsa|secret|seed|service|session"
    r"|shared|\bsign|signing|ssh|ssl|storage|subscription|tls|unseal|wandb) ?key"
    r"|(access|activation|recovery|unlock) ?code|token ?value|\bconn(ection)? ?str(ing)?\b|(?<!by)(?<!com)pass\b"
    r"|auth\b|\bassword|keyfile|passw|phrase\b|secret|credential|otp\b|p[as]*wo?r?d\b|pw\b"
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
_PASSWORD_READER = re.compile(
    r"(?<![\w-])((sudo|doas) ([^|;&]{0,200} )?(-[A-Za-z]{0,9}S|--stdin)|expect -\w{0,3}c|cryptsetup|kadmin|kinit"
    r"|mysql_config_editor|net use|runas|ssh-add)(?![\w-])|(?<![^|;&]) {0,3}su(?![\w:.-])"
)
"""Pattern of commands that read a password from their input or arguments."""
PASSWORD_PROGRAM = re.compile(
    r"(?<![\w.-])(https?|ldap\w{3,20}|openssl|(keydb|redis|valkey)-cli|snmp\w{2,20}|ssh-keygen)(?![^\s\"'])"
)
"""Pattern of programs in which the options in `PASSWORD_OPTION` take passwords. In other programs, these options have
ordinary values."""
PASSWORD_OPTION = re.compile(r"(?<![^\s\"'])-[aAkKNwWxX]")
"""Pattern of short options for passwords, as in ``redis-cli -a PASSWORD``."""
_PASSWORD_CALL = re.compile(
    r"\b((mariadb|MySQLdb|oracledb|cx_Oracle|psycopg2?|pymssql|pymysql)\.connect|communicate|Fernet|Git[hl][au]b"
    r"|OAuthHandler|sendline|TeleBot|TelegramClient)\("
)
"""Pattern of functions with a password or key as a positional argument, or as input of a command."""
_USER_OPTION = re.compile(
    r"""(?<=[\s"'])(-[a-z]{0,8}u|--([a-z]{1,20}-)?user(name)?|-a(?=["'\s,]{1,12}[^\s"'/,]{1,60}:))"""
    r"""[\s"',=+\[\]]{1,12}([bfru]{1,2}["'])?[^\s"'(),=\[\]:%/-][^\s"'(),=\[\]:%/]{0,60}"""
    r"""([,%]|:(?!//)|/(?!\S{0,200}\.[a-z]\w{0,7}["'\s]))[^\s"',]""",
    re.IGNORECASE,
)
"""Pattern of an option with a user and a password, as in ``["curl", "-u", "bob:x"]`` and ``"curl --user=bob:x"``."""
_LISTED_OPTION = re.compile(r"""["']-([pPw]|[A-Za-z]{1,8}[pP])["']\s*,(?!\s{,9}["']\d{,5}["'])""")
"""Pattern of an option for a password in a list, as in ``["mysql", "-p", "x"]``."""
_COUNT = re.compile(r"\b(count|dim|heads|layers|len|length|max|min|n|num|size)\b")
"""Words in names of numeric options such as ``--num_key_value_heads``."""


def mentions_secret(text: str) -> bool:
    return names_secret(text) or any(map(names_secret, re.findall(r"[\w -]+", text)))


def reads_password(text: str) -> bool:
    """Return whether a part of a command mentions a secret or reads a password from its input, as ``sudo -S`` does."""
    return mentions_secret(text) or _PASSWORD_READER.search(text) is not None


def passes_password(line: str) -> bool:
    """Return whether a line of code contains a command, an option or a call that usually takes a password."""
    program = PASSWORD_PROGRAM.search(line)
    has_option = program is not None and PASSWORD_OPTION.search(line, program.end()) is not None
    separated = re.sub(r"[\s\"',]+", " ", line)  # as in ["sudo", "-S"]
    has_option = has_option or any(pattern.search(line) for pattern in (_LISTED_OPTION, _USER_OPTION, _PASSWORD_CALL))
    return has_option or _PASSWORD_READER.search(separated) is not None


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
