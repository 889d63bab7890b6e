"""What the daemon never uses is kept out of its process, and only for as long as said."""

import subprocess
import sys


def run(code: str) -> str:
    """In a Python of its own, which has imported nothing yet."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True).stdout


def test_ssl_is_the_real_one_afterwards() -> None:
    """What the daemon's libraries were given is given to nobody else."""
    code = (
        "from edgeguardd.standins import without_unused\n"
        "with without_unused():\n    import asyncio, edgeguardd.daemon\n"
        "import sys; assert '_ssl' not in sys.modules\n"
        "import ssl; print(ssl.create_default_context().check_hostname)\n"
    )
    assert run(code) == "True\n"


def test_what_the_daemon_never_uses_is_not_loaded_and_can_be_afterwards() -> None:
    """Parts of an HTTP server and a client, and what they bring: another 2 MiB."""
    names = [
        "http.server",
        "http.client",
        "urllib.request",
        "wsgiref.simple_server",
        "email",
        "tempfile",
        "ctypes.util",
    ]
    code = (
        "from edgeguardd.standins import without_unused\n"
        "with without_unused():\n    import edgeguardd.daemon\n"
        f"import sys; print([name for name in {names} if name in sys.modules])\n"
        "import ctypes.util, http.server, urllib.request, wsgiref.simple_server\n"
        "print(http.server.HTTPServer.__name__, urllib.request.urlopen.__name__, ctypes.util.find_library('c'))"
    )
    assert run(code).splitlines() == ["[]", "HTTPServer urlopen libc.so.6"]


def test_directories_are_watched_without_a_search_for_libc() -> None:
    """asyncinotify takes the one that the process has loaded."""
    code = (
        "from edgeguardd.standins import without_unused\n"
        "with without_unused():\n    import edgeguardd.daemon, asyncinotify\n"
        "with asyncinotify.Inotify() as inotify:\n"
        "    print(inotify.add_watch('/', asyncinotify.Mask.CREATE).path)\n"
    )
    assert run(code) == "/\n"


def test_digests_are_the_same_without_unused() -> None:
    """Names of files are made with them: they have to stay what they were."""
    show = "import hashlib; print(hashlib.sha256(b'/llm').hexdigest())"
    without = f"from edgeguardd.standins import without_unused\nwith without_unused():\n    {show}\n"
    theirs, (own, loaded) = run(show).strip(), run(f"{without}import sys; print('_hashlib' in sys.modules)").split()
    assert own == theirs
    assert loaded == "False"


def test_what_is_there_already_stays() -> None:
    """A program that has imported ssl before keeps it."""
    code = (
        "import ssl, sys\nfrom edgeguardd.standins import without_unused\n"
        "with without_unused():\n    assert sys.modules['ssl'] is ssl\nprint(sys.modules['ssl'] is ssl)\n"
    )
    assert run(code) == "True\n"
