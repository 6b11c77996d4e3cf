"""`saywhy serve`: a page that captions pictures and explains every word."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from saywhy.cli.common import import_plugins, print_error
from saywhy.cli.options import FLAG, MACHINE, Device, Plugins, examples
from saywhy.errors import UserError

SERVER = "Server"
LOCAL = ("127.0.0.1", "localhost", "::1")
EPILOG = examples(
    "saywhy serve",
    "saywhy serve --port 9000 --open",
    "saywhy serve --model runs/before --model runs/after",
    "saywhy serve --host 0.0.0.0",
)


def serve(
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|DIR",
            help="Name or folder of a model. Repeatable: the page compares models side by side.",
            show_default="the shipped model",
        ),
    ] = None,
    plugins: Plugins = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Address to listen on; 0.0.0.0 lets other machines use the page.",
            rich_help_panel=SERVER,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", min=0, max=65535, help="Port; 0 takes a free one.", rich_help_panel=SERVER)
    ] = 8000,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A host name under which the server may be called, beside its addresses. Repeatable.",
            show_default=False,
            rich_help_panel=SERVER,
        ),
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open", metavar=FLAG, help="Open the page in a browser.", rich_help_panel=SERVER)
    ] = False,
    device: Device = "auto",
    threads: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=1024,
            help="Threads of torch.",
            show_default="torch's choice",
            rich_help_panel=MACHINE,
        ),
    ] = None,
) -> None:
    """Serve a web page that captions a picture and shows why each word was chosen.

    Nothing leaves this machine. The page, and an interface for programs at /docs, work until Ctrl-C.
    """
    uvicorn = _uvicorn()
    import_plugins(plugins)
    from saywhy.inference.model import load
    from saywhy.web.app import create_app

    socket = _listen(host, port)
    models = [load(name, device) for name in model or ()] or [load(None, device)]
    names = [*(allow_host or ()), *([] if host in LOCAL else [host])]
    app = create_app(models, hosts=names, threads=threads, warm_up=True)
    address = f"http://{_shown(host)}:{socket.getsockname()[1]}/"
    typer.echo(address)
    if host not in LOCAL:
        print_error(f"anyone who can reach {host} can use this server; there is no password")
    if open_browser:
        _open_when_ready(address)
    config = uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=3, server_header=False)
    uvicorn.Server(config).run(sockets=[socket])


def _uvicorn() -> Any:
    try:
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn
    except ModuleNotFoundError as error:
        raise UserError(f"saywhy serve needs {error.name}: pip install 'saywhy[web]'") from None
    return uvicorn


def _listen(host: str, port: int) -> Any:
    """A socket on this address, so that a port in use is noticed before a model is loaded."""
    import socket

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(256)
    except (OSError, TypeError) as error:  # TypeError: no name of a host, such as one of 300 letters
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"cannot listen on {host}, port {port} ({reason}): choose another") from None
    return listener


def _shown(host: str) -> str:
    """The host as part of an address; one that means every address of this machine is shown as localhost."""
    if host in ("0.0.0.0", "::"):
        return "localhost"
    return f"[{host}]" if ":" in host else host


def _open_when_ready(address: str) -> None:
    import threading
    import webbrowser

    threading.Timer(1.0, webbrowser.open, [address]).start()
