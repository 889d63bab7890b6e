"""OpenSSL kept out of a process, and only for as long as said."""

import subprocess
import sys


def run(code: str) -> str:
    """In a Python of its own, which has imported nothing yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_ssl_is_the_real_one_afterwards() -> None:
    """What the daemon's libraries were given is given to nobody else."""
    code = (
        "from edgeguardd.standins import without_openssl\n"
        "with without_openssl():\n    import asyncio, edgeguardd.daemon\n"
        "import sys; assert '_ssl' not in sys.modules\n"
        "import ssl; print(ssl.create_default_context().check_hostname)\n"
    )
    assert run(code) == "True\n"


def test_digests_are_the_same_without_openssl() -> None:
    """Names of files are made with them: they have to stay what they were."""
    show = "import hashlib; print(hashlib.sha256(b'/llm').hexdigest())"
    without = f"from edgeguardd.standins import without_openssl\nwith without_openssl():\n    {show}\n"
    theirs, (own, loaded) = run(show).strip(), run(f"{without}import sys; print('_hashlib' in sys.modules)").split()
    assert own == theirs
    assert loaded == "False"


def test_what_is_there_already_stays() -> None:
    """A program that has imported ssl before keeps it."""
    code = (
        "import ssl, sys\nfrom edgeguardd.standins import without_openssl\n"
        "with without_openssl():\n    assert sys.modules['ssl'] is ssl\nprint(sys.modules['ssl'] is ssl)\n"
    )
    assert run(code) == "True\n"
