"""`transom serve`."""

import argparse
import logging
import os
from typing import Any

from transom import logs
from transom.cli import settings
from transom.cli.limits import add_limit_flags, limits
from transom.cli.model import GEMMA_HELP, MODEL_HELP, add_engine_flags, engine_config, find_model
from transom.cli.parser import Parser, add_command
from transom.config import LOG_FORMATS, LOG_LEVELS, LogConfig, ServerConfig
from transom.errors import ConfigError

log = logging.getLogger("transom.server")
DEFAULTS = ServerConfig()
HELP = """\
Serve one model over HTTP, with OpenAI's API.

  transom serve                    the default model on http://127.0.0.1:8000
  transom serve model.gguf --port 9000
  transom serve --kv-bytes 1G --max-running-requests 64

Requests that do not fit into memory wait. A running request may be retracted to make room; it continues later
with the same output. A prompt that is longer than the context is refused, never truncated. The start screen
shows the resulting settings; its last line is a request to paste into another terminal.

Ctrl-C or SIGTERM stops the server: running answers may finish within --finish-seconds. A second signal stops
it at once. An engine process that crashes or hangs is replaced within seconds, and answers continue. Exit
statuses: 0 after one signal, 130 after the second, 1 if the server cannot start or 5 engines in a row ended
without a token, 2 for wrong usage.

Each flag can also be set by a variable, such as TRANSOM_PORT=9000, or in the TOML file of --config, such as
port = 9000. The command line wins over the environment, the environment over the file.

docs/commands.md explains every flag; docs/serving.md has the endpoints, fields and metrics.
"""


def add(commands: Any) -> Parser:
    parser = add_command(
        commands,
        "serve",
        _run,
        help="serve a model over HTTP",
        usage="transom serve [MODEL] [flags]",
        description=HELP,
        epilog=GEMMA_HELP,
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument(
        f"--{settings.CONFIG}",
        metavar="FILE",
        help="a TOML file with values of flags, such as port = 9000; see above",
    )
    network = parser.add_argument_group("network")
    network.add_argument(
        "--host",
        default=DEFAULTS.host,
        metavar="ADDRESS",
        help="address to listen on; default %(default)s, for this machine only; 0.0.0.0 listens on all "
        "networks: set an API key then",
    )
    network.add_argument(
        "--port",
        type=int,
        default=DEFAULTS.port,
        metavar="N",
        help="port to listen on; default %(default)s; 0 picks a free one",
    )
    _add_transport_flags(network)
    network.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="the model's name for clients; default: its built-in name, or the file name without .gguf",
    )
    network.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help="require this API key; may be repeated. Visible to other users in ps: prefer the variable "
        "TRANSOM_API_KEY. Default: no authentication",
    )
    _add_trust_flags(network)
    add_engine_flags(parser)
    add_limit_flags(parser)
    logging = parser.add_argument_group("log, on standard error")
    logging.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="least severe messages to log; info has a line per request; default %(default)s",
    )
    logging.add_argument(
        "--log-format",
        choices=LOG_FORMATS,
        default="text",
        help="text, or json with one object per line; default %(default)s",
    )
    return parser


def _add_transport_flags(network: Any) -> None:
    network.add_argument(
        "--uds",
        metavar="PATH",
        help="listen on this Unix socket, in place of address and port; its owner and its group may connect",
    )
    network.add_argument(
        "--ssl-certfile",
        metavar="FILE",
        help="speak TLS with the certificate chain of this PEM file; SIGHUP reads it again. Default: no TLS",
    )
    network.add_argument(
        "--ssl-keyfile",
        metavar="FILE",
        help="the certificate's private key, PEM without a passphrase; default: it is in --ssl-certfile",
    )
    network.add_argument(
        "--root-path",
        default=DEFAULTS.root_path,
        metavar="PREFIX",
        help="a prefix, such as /llm, that a proxy leaves on the paths of requests; default: none",
    )
    network.add_argument(
        "--trusted-proxy",
        action="append",
        default=[],
        metavar="ADDRESS",
        help="believe X-Forwarded-For, which names the client in the log, from this address or network, or "
        "unix; may be repeated. Default: from none",
    )


def _add_trust_flags(network: Any) -> None:
    network.add_argument(
        "--api-key-file",
        metavar="FILE",
        help='require one of the named keys of this TOML file, such as alice = "KEY"; SIGHUP reads it again',
    )
    network.add_argument(
        "--admin-api-key",
        metavar="KEY",
        help="require this key for commands: pause, flush, update of the weights, abort of other clients' "
        "requests. Prefer the variable TRANSOM_ADMIN_API_KEY. Default: commands work on a loopback address, "
        "with at most one API key",
    )
    network.add_argument(
        "--allow-commands",
        action="store_true",
        help="let every client send commands, on any address and with any API key",
    )
    network.add_argument(
        "--weights-dir",
        metavar="FOLDER",
        help="let the command update_weights_from_disk load the GGUF files in this folder. Default: none; "
        "the weights stay those of MODEL",
    )
    network.add_argument(
        "--share-prefixes",
        action="store_true",
        help="let each API key find the cached prefixes of the others. It can then measure which prefixes "
        "they have sent. Default: each key has a cache of its own",
    )
    network.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="answer requests to this name too; may be repeated. Default: on a loopback address, only names "
        "of loopback such as localhost; on another address, any name",
    )
    network.add_argument(
        "--cors-origin",
        action="append",
        default=[],
        metavar="ORIGIN",
        help="let web pages of this site use the server, such as https://chat.example; may be repeated; * "
        "lets all. Default: none",
    )


def _run(options: argparse.Namespace) -> None:
    found = settings.load(options.parser, options, os.environ)
    try:
        server, engine = server_config(options), engine_config(options)
    except ConfigError as error:
        raise found.explained(error) from None
    log_config = LogConfig(options.log_level, options.log_format)
    logs.configure(log_config)
    for name in found.unknown:
        log.warning("the environment has %s, which is not a setting", name)
    from transom.server.launch import serve_model
    from transom.server.listening import listen

    # The port is taken first: a download or a load that ends in "address in use" would waste minutes.
    listener = listen(server)
    find_model(engine.model)
    serve_model(server, engine, log_config, listener)


def server_config(options: argparse.Namespace) -> ServerConfig:
    """The server's settings from flags. ConfigError, naming the flag."""
    return ServerConfig(
        host=options.host,
        port=options.port,
        uds=options.uds,
        ssl_certfile=options.ssl_certfile,
        ssl_keyfile=options.ssl_keyfile,
        root_path=options.root_path,
        trusted_proxies=tuple(options.trusted_proxy),
        served_model_name=options.served_model_name,
        api_keys=tuple(options.api_key),
        api_key_file=options.api_key_file,
        admin_api_key=options.admin_api_key,
        allow_commands=options.allow_commands,
        weights_dir=options.weights_dir,
        share_prefixes=options.share_prefixes,
        allowed_hosts=tuple(name.lower() for name in options.allowed_host),
        cors_origins=tuple(origin.lower() for origin in options.cors_origin),
        limits=limits(options),
    )
