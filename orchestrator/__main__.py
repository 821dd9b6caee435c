"""`python -m orchestrator`, and what the installed `orchestrator` calls.

A Ctrl-C while Python still loads modules would print where it was at that moment. Until the command
line is there to say something better, Ctrl-C ends the process as it ends any program. (Before this
line Python itself starts, for some 20 ms, and has its own way.)
"""

import _signal  # type: ignore[import-not-found]  # not `signal`, which loads others first
import sys

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # not one that nohup started
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)


def main() -> None:
    """Load the command line, and hand over; a server whose client waits is served without it."""
    if sys.argv[1:2] == ["serve"]:
        from orchestrator.surfaces.cli.serving import serve_at_once  # noqa: PLC0415 after the above

        serve_at_once(sys.argv[1:])
    if sys.argv[1:2] == ["connect"]:
        from orchestrator.surfaces.connect.connecting import connect_at_once  # noqa: PLC0415

        connect_at_once(sys.argv[1:])
    from orchestrator.surfaces.cli.main import main as command_line  # noqa: PLC0415 after the above

    command_line()


if __name__ == "__main__":
    main()
