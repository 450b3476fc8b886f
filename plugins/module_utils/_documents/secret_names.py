# Copyright (c) 2026, the gpufleet.nvidia maintainers
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""Decide whether the value of a key, an option, a variable, a header or a parameter is a secret."""

from __future__ import annotations

import re

# The members of an object that is one entry of a list, {"name": NAME, "value": VALUE}.
NAME_MEMBERS = ("name", "key")
PAIR_MEMBERS = (*NAME_MEMBERS, "value")

# The words of a name: awsAccessKey, AWS_ACCESS_KEY and aws.access-key become aws-access-key.
_WORD_START = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_SEPARATORS = str.maketrans("_. /", "----")

_SECRET = re.compile(
    r"token|secret|passw(?:or)?d|passphrase|passcode|api-?key|client-?key-?data|docker-?cfg|docker-?config-?json"
    r"|(?:access|account|auth|encryption|license|master|private|session|shared|signing|storage)-?key"
    r"|(?:auths?|auth-?config|authorization|bearer|cookies?|credentials?|jwt|psk|pwd|session-?id|signature)\d*\Z"
    r"|(?<![a-z])(?:creds?|otp|pass|pat|proxy-user|sas|sig|x-registry-config)\d*\Z"
)
# What is said about a secret, and settings that switch something. The value is not the secret.
_ABOUT = (
    "age|algorithm|alg|attempts|audience|backend|bytes|cmd|command|count|days|disabled|driver|duration|enabled|endpoint"
    "|encoding|expiration|expires(?:-(?:after|at|in|on))?|expiry|field|format|header|helper|host|hours|interval|issuer"
    "|kind|len|length|level|lifetime|limit|max|method|min|minutes|mode|name|namespace|period|plugins?|policy|port|prompt"
    "|providers?|realm|ref|refresh|renewal|required|retries|rotation|scheme|seconds|secs|server|service|size|socket|stdin"
    "|store|strategy|supported|timeout|ttl|type|uri|url|version"
)
_HARMLESS = re.compile(
    rf"(?:-|(?:token|secret|passw(?:or)?d|key)s?)(?:{_ABOUT})\Z"
    r"|\A(?:allow|disable|enable|max|min|no|num|require|skip)-"
    r"|tokens?-per-"
)
# Names of files, and the values that are paths. Keys and tokens in base64 may begin with a slash, but have no suffix.
_NAMES_FILE = re.compile(r"(?:files?|paths?|dirs?|directory|folder|location|mount)\Z")
_PATH = re.compile(r"(?:~|\.{1,2})?/[^\s:@?=&]*")
_KEY_FILE = re.compile(r"~?/[^\s:@?=&]*\.(?:asc|cer|cert|crt|csr|der|gpg|jks|key|p12|pem|pfx|pub)")
# Names of parameters in the query or the fragment of a URL, in addition to the names above.
_PARAMETER = re.compile(r"(?:code|hmac|key|pw|session|sid|ticket)\Z")


def is_secret(name: str, value: object = None) -> bool:
    """Return whether the value of an entry with this name must be hidden.

    The path of a file is no secret: an absolute path with the suffix of a key or a certificate, or one whose name says
    that it is a path. Without ``value``, only the name decides.
    """
    words = _words(name)
    if _SECRET.search(words) is None or _HARMLESS.search(words) is not None:
        return False
    if not isinstance(value, str) or "/" not in value:
        return True
    is_path = _KEY_FILE.fullmatch(value) or (_NAMES_FILE.search(words) and _PATH.fullmatch(value))
    return not is_path


def is_secret_parameter(name: str) -> bool:
    """Return whether the value of this parameter of a URL must be hidden, although the name alone does not say so."""
    return _PARAMETER.match(_words(name)) is not None


def _words(name: str) -> str:
    return _WORD_START.sub("-", name).translate(_SEPARATORS).lower()
