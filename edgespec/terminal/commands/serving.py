"""`edgespec serve` and `edgespec worker`: what can be said about them on the command line."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, cast

import typer

from edgespec.loading.load_options import LoadOptions
from edgespec.terminal.parameters import Memory, ModelArgument, Threads, expand, one_model


@expand(sequences=4)
def serve(
    *,
    model_argument: ModelArgument = None,
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="TCP port; 0 picks a free one.")
    ] = 8080,
    api_key: Annotated[
        str,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="EDGESPEC_API_KEY",
            help="Key that clients must send.",
            show_default=False,
        ),
    ] = "",
    alias: Annotated[
        list[str] | None,
        typer.Option(
            "--alias", metavar="NAME", help="Another name for the model; may be repeated."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host", metavar="NAME", help="Host name that requests may be sent to."
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors", metavar="ORIGIN", help="Origin of web pages that may use the server."
        ),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option("--max-waiting", metavar="N", help="Requests that may wait in line.")
    ] = 256,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="S", help="Seconds until a request is given up.")
    ] = 600.0,
    max_body: Annotated[
        int, typer.Option("--max-body", metavar="MIB", help="Maximum size of a request in MiB.")
    ] = 8,
    load: LoadOptions,
) -> None:
    """Serve a model to programs that speak OpenAI's or Ollama's protocol.

    Requests wait in line and then share passes, --max-batch at a time. By default only this machine
    can reach the server; on any other address an API key is required.
    """
    from edgespec.server.run import ServeOptions, run_server

    options = ServeOptions(
        host,
        port,
        api_key,
        tuple(alias or ()),
        tuple(allow_host or ()),
        tuple(cors or ()),
        max_waiting,
        timeout,
        max_body,
    )
    model = one_model(model_argument, cast("str | None", load.model))
    run_server(replace(load, model=model), options)


def worker(
    host: Annotated[
        str, typer.Option("--host", metavar="HOST", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", help="TCP port; 0 picks a free one.")
    ] = 50052,
    memory: Memory = "auto",
    threads: Threads = None,
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file",
            metavar="FILE",
            help="Key that clients need; addresses beyond this machine require one.",
        ),
    ] = None,
    new_key: Annotated[
        str | None,
        typer.Option("--new-key", metavar="FILE", help="Write a new key file and exit."),
    ] = None,
) -> None:
    """Hold and compute layers of a model that runs on another machine.

    Other machines use it with `--workers HOST:PORT --key-file FILE`, through llama.cpp's RPC
    backend. The same key file on both machines lets clients in and encrypts what is sent. Without
    one, only this machine can reach the worker.
    """
    from edgespec.terminal.serve_worker import make_key, run_worker

    if new_key is not None:
        make_key(new_key)
        return
    run_worker(host, port, memory, threads, key_file)
