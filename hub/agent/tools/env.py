"""The environment that a tool's process gets: the hub's own, without what it must not inherit.

| dropped                                   | why                                                         |
|-------------------------------------------|-------------------------------------------------------------|
| names that settings refer to as secrets   | credentials that Turnback loads                             |
| TURNBACK_*                                | addresses and tokens of the hub                             |
| GIT_*                                     | would point a command's git at another repository or index  |
| a word of the name is in SECRET_WORDS or  | looks like a credential: NPM_TOKEN, AWS_SECRET_ACCESS_KEY,  |
| ends in SECRET_ENDINGS, or the name holds | PGPASSWORD, OPENAI_API_KEY, SSH_AUTH_SOCK                   |
| one of SECRET_PHRASES                     |                                                             |
| BASH_ENV, ENV, BASH_FUNC_*                | would run code at the start of every shell                  |

Everything else stays: PATH, HOME, LANG, TERM, TMPDIR and so on.
Not promised: that no secret hides under a harmless name, or in a file that the process can read.
"""

from collections.abc import Collection, Mapping

OWN_PREFIXES = ("TURNBACK_", "GIT_", "BASH_FUNC_")
SHELL_START = frozenset({"BASH_ENV", "ENV"})
SECRET_WORDS = frozenset(
    {"TOKENS", "SECRETS", "PASSWORDS", "PASS", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "CREDS", "AUTH"}
    | {"AUTHORIZATION", "COOKIE", "COOKIES", "DSN", "PAT", "JWT"}
)
SECRET_ENDINGS = ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "APIKEY")
SECRET_PHRASES = (
    *("API_KEY", "ACCESS_KEY", "PRIVATE_KEY", "SECRET_KEY", "SIGNING_KEY", "ENCRYPTION_KEY"),
    *("SERVICE_ACCOUNT", "CONNECTION_STRING", "DATABASE_URL"),
)


def scrubbed_environment(environ: Mapping[str, str], secrets: Collection[str] = ()) -> dict[str, str]:
    """Return the part of `environ` that a tool's process may have. `secrets` are names to drop besides the table."""
    return {name: value for name, value in environ.items() if name not in secrets and not is_withheld(name)}


def is_withheld(name: str) -> bool:
    """Say whether the table above drops a variable of this name. Upper and lower case are the same."""
    upper = name.upper()
    if upper.startswith(OWN_PREFIXES) or upper in SHELL_START:
        return True
    if any(phrase in upper for phrase in SECRET_PHRASES):
        return True
    return any(word in SECRET_WORDS or word.endswith(SECRET_ENDINGS) for word in upper.split("_"))
