"""Redaction of keys, tokens and passwords in everything that is written, shown or sent."""

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar

T = TypeVar("T")

HIDDEN: Final = "***"

_OF_TEXT: Final = (
    r"(?:pad|eos|bos|unk|unknown|sep|cls|mask|begin|start|end|stop|special|image|audio|video|eot|sot"
    r"|first|last|next|prev|new|max|min|num|per)"
)
"""Words before `token` that mean a vocabulary token, not a secret."""
_OF_SERVICE: Final = r"(?:access|auth|api|bearer|refresh|session|id|hub|hf|wandb|github|gitlab|slack|csrf|xsrf)"
_OPENING: Final = (
    r"(?:api|access|private|auth|secret|client|signing|encryption|ssh|account|master|service|deploy|license|session)"
)
"""Words before `key` that make it a secret, unlike a sort key, a pair key or a padding mask of keys."""
_LOGIN: Final = r"(?:my|db|database|sql|mysql|pg|postgres|redis|smtp|mail|email|ftp|http|proxy|user|login|admin|root)"
_NAME: Final = (
    rf"(?:{_OPENING}[_-]?keys?(?:[_-]?ids?)?|secrets?|passwords?|passwds?|passphrases?|passcodes?|pwds?"
    rf"|{_LOGIN}[_-]?pass|credentials?|creds?|authorization|(?:set[_-])?cookies?|jwts?|connection[_-]?string|dsn"
    rf"|{_OF_SERVICE}[_-]?tokens?|(?!{_OF_TEXT}[_-]token)[a-z0-9]+[_-]token)"
)
_ALONE: Final = r"(?:token|pass|auth|bearer)"  # only on their own, unlike forward_pass and `unexpected token: x`
_SECRET_NAME: Final = re.compile(rf"(?:^|[._-]){_NAME}$|^{_ALONE}$", re.IGNORECASE)
_SECRET_VARIABLE: Final = re.compile(
    r"(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASSCODE|PWD|(?<!ASK)PASS|CREDENTIALS?|CREDS?|COOKIES?|AUTH|BEARER"
    r"|JWT|DSN|WEBHOOK(?:_URL)?|CONNECTION_STRING)$"
)
_HUMPS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")  # the word boundaries in `clientSecret`
_MIN_LENGTH: Final = 12
"""Shorter values are searched for as whole words only, and only if they mix letters with other characters."""
_MIN_WORD: Final = 6

_VALUE: Final = r"(?:\[[^\]]*\]|'[^']*'|\"[^\"]*\"|[^\s,}\]]+)"
_ASSIGNED: Final = re.compile(
    rf"((?<![\w.-])(?:(?:[\w.-]*[._-])?{_NAME}['\"]?\s*[=:]\s*+|--key[=\s]\s*+"
    rf"|(?:[\w.-]*\.|--)?{_ALONE}(?:=|:(?=\S)|:\s++(?=[^\s\d]*\d)(?=[^\sa-z]*[a-z])(?=\S{{6}}))"
    rf"(?!(?:true|false|none|null|\d{{1,4}})\b))"
    rf"|--(?:[\w.-]*[._-])?{_NAME}\s++|(?:^|[{{,'\"])\s*{_ALONE}['\"]?:\s++)(?!['\"]?\*\*\*)({_VALUE})",
    re.IGNORECASE | re.MULTILINE,
)
_HUMPED: Final = re.compile(r"(?<![\w.-])((?:[\w.-]*\.)?[a-z][a-z0-9]*(?:[A-Z][a-z0-9]*)+)(['\"]?\s*[=:]\s*)" + _VALUE)
_HEADER: Final = re.compile(
    r"\b((?:proxy-)?authorization|(?:set-)?cookie)(['\"]?\s*[:=]\s*['\"]?)[^'\"\n]+", re.IGNORECASE
)
_PREFIXES: Final = {
    r"[0-9A-Za-z]{16,}": (
        r"hf_ api_org_ gh[pousr]_ npm_ [rs]k_(?:live|test|prod)_ (?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)(?=[A-Z2-7]{16}\b) "
        r"LTAI dapi(?=[a-f0-9]{32}) do[opr]_v1_ lin_api_ ntn_ pnu_ pplx- pul- rdme_ rubygems_ shp(?:at|ca|pa|ss)_ "
        r"shippo_(?:live|test)_ sm_[aps]at_ sntryu_"
    ),
    r"[\w.-]{20,}": (
        r"sk- github_pat_ gl(?:pat|dt|ft|rt|ptt|oas|cbt|ffct|imt|agent|soat)- pypi- AIza ya29\. dckr_[po]at_ wandb_v1_ "
        r"xox[abeoprs]\.xox[bp]- xapp- hv[brs]\. SG\.(?=[\w-]{16,32}\.) glsa_ sgp_ sha256~ pscale_(?:tkn|oauth|pw)_ "
        r"dp\.pt\. dt0c01\. sq0(?:atp|csp)- xkeysib- PMAK- HRKU- AGE-SECRET-KEY-1"
    ),
    r"[\w.+/=-]{20,}": "sntrys_ glc_ ops_eyJ ABSK",
}
"""Pattern of the rest -> prefixes of keys and tokens: those that gitleaks (config/gitleaks.toml) and detect-secrets 1.5
recognize by the value alone, without what a commit hash would match, plus Docker's, Google OAuth's and W&B's."""
_KNOWN_FORMS: Final = re.compile(
    r"\b(?:"
    + "|".join(rf"(?:{'|'.join(prefixes.split())}){rest}" for rest, prefixes in _PREFIXES.items())
    + r"|xox[abeoprs]-[\w-]{10,}|eyJ[\w-]{5,}\.[\w-]{5,}\.[\w-]*)"
)
_KEY_BLOCK: Final = re.compile(
    r"-----BEGIN[\sA-Z0-9\\]*PRIVATE[\s\\]+KEY.*?(?:-----END[\sA-Z0-9\\]*PRIVATE[\s\\]+KEY(?: BLOCK)?-----|\Z)",
    re.DOTALL,
)
_HOOK: Final = re.compile(
    r"((?:hooks\.slack(?:-gov)?\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks"
    r"|\.webhook\.office\.com/webhookb2)/)[^\s'\"<>]+"
)
_BEARER: Final = re.compile(r"\b(Bearer\s+)(?=[^\s'\"]*\d|\S{20})[\w.~+/=-]{8,}", re.IGNORECASE)
_IN_URL: Final = re.compile(r"(://[^/\s:@]*:)(?:[^/\s'\"]{1,256}(?=@)|(?!\d+(?:[/\s]|$))[^\s'\"]{1,256}(?=@))")
_ALONE_IN_URL: Final = re.compile(r"(https?://)[^/\s@:'\"]{1,256}(?=@[\w\[])", re.IGNORECASE)
"""A token in place of the user name; the user of `ssh://git@host` is not a secret."""
_BEFORE_HOST: Final = re.compile(
    r"(?<![\w/.@:-])((?!mailto:)[\w.-]+:)[^\s/:'\"]{1,256}(?=@(?:localhost\b|[\w-]+\.[\w.-]*\w))"
)


def hide(text: str, beside: object = None) -> str:
    """Replace every secret in `text` by `***`: the values of variables and names such as WANDB_API_KEY or `--password`,
    wherever they recur, headers, passwords in URLs, tokens of well-known forms, and secrets named in `beside`."""
    return _hide(text, _secrets([beside, text]))


def hidden(value: T, beside: object = None) -> T:
    """Copy `value`, a tree of lists, dicts and dataclasses, with `hide` applied to strings and `***` for values with
    secret names; a secret named anywhere in it, or in `beside`, is hidden everywhere."""
    redacted: T = _hidden(value, _secrets([value, beside]))
    return redacted


def _hide(text: str, secrets: Iterable[re.Pattern[str]]) -> str:
    for secret in secrets:
        text = secret.sub(HIDDEN, text)
    if _assigns(text):
        text = _HEADER.sub(rf"\g<1>\g<2>{HIDDEN}", text)
        text = _ASSIGNED.sub(rf"\g<1>{HIDDEN}", text)
        text = _HUMPED.sub(lambda it: f"{it[1]}{it[2]}{HIDDEN}" if _is_secret_name(it[1]) else it[0], text)
    if "@" in text:
        text = _ALONE_IN_URL.sub(rf"\g<1>{HIDDEN}", text)
        text = _IN_URL.sub(rf"\g<1>{HIDDEN}", text)
        text = _BEFORE_HOST.sub(rf"\g<1>{HIDDEN}", text)
    text = _HOOK.sub(rf"\g<1>{HIDDEN}", _BEARER.sub(rf"\g<1>{HIDDEN}", text))
    return _KNOWN_FORMS.sub(HIDDEN, _KEY_BLOCK.sub(HIDDEN, text))


def _hidden(value: Any, secrets: list[re.Pattern[str]]) -> Any:
    if isinstance(value, str):
        return _hide(value, secrets)
    if isinstance(value, dict):
        return {key: _blank(item) if _is_secret_name(key) else _hidden(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_hidden(item, secrets) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **_hidden(_facts(value), secrets))
    return value


def _facts(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value)}


def _blank(value: Any) -> Any:
    """Copy the value of a secret's name with `***` for every string and number in it, but not for booleans."""
    if isinstance(value, dict):
        return {key: _blank(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_blank(item) for item in value]
    return value if value is None or isinstance(value, bool) or value == "" else HIDDEN


def _secrets(value: object) -> list[re.Pattern[str]]:
    """Patterns of the values of secret variables and of secret names in `value`, the longest first."""
    variables = {text for name, text in os.environ.items() if _is_secret_variable(name)}
    found = (variables | {*_named(value)}) - {HIDDEN}
    return [pattern for text in sorted(found, key=len, reverse=True) if (pattern := _searched_for(text)) is not None]


def _searched_for(secret: str) -> re.Pattern[str] | None:
    """The pattern of a secret; None if the secret is so short or plain that it could be an ordinary word."""
    if len(secret) >= _MIN_LENGTH:
        return re.compile(re.escape(secret))
    is_mixed = any(map(str.isalpha, secret)) and not secret.isalpha()
    if len(secret) < _MIN_WORD or not is_mixed:
        return None
    return re.compile(rf"(?<!\w){re.escape(secret)}(?!\w)")


def _named(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if _is_secret_name(key):
                yield from _scalars(item)
            yield from _named(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _named(item)
    elif isinstance(value, str) and _assigns(value):
        for found in _ASSIGNED.finditer(value):
            parts = found[2][1:-1].split(",") if found[2].startswith("[") else [found[2]]
            yield from (part.strip().strip("'\"") for part in parts)
    elif is_dataclass(value) and not isinstance(value, type):
        yield from _named(_facts(value))


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _scalars(item)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def _assigns(text: str) -> bool:
    """Return False fast for most texts: those that cannot contain a name with its value."""
    return "=" in text or ":" in text or "--" in text


@cache
def _is_secret_name(key: object) -> bool:
    return _SECRET_NAME.search(_HUMPS.sub("_", str(key))) is not None


@cache
def _is_secret_variable(name: str) -> bool:
    return name not in ("PWD", "OLDPWD") and _SECRET_VARIABLE.search(name.upper()) is not None
