"""``%gpumem engines CLIENT``: monitor the engines of an ipyparallel cluster."""

from __future__ import annotations

import argparse

from ipygpumem.core.errors import OptionError
from ipygpumem.features.commands.command import HELP, Command, Notebook, Option


def _run(notebook: Notebook, arguments: argparse.Namespace) -> None:
    from ipygpumem.features.ranks.engines.enable import active, disable, enable

    clients = arguments.client
    if len(clients) > 1:
        raise OptionError("expected a single client, as in %gpumem engines rc")
    notebook.claim_cell()
    engines = active()
    if clients == ["off"] and "off" not in notebook.shell.user_ns:
        message = "engines are no longer monitored" if engines is not None else "no engines were monitored"
        disable()
    elif clients:
        message = str(enable(notebook.evaluate(clients[0])))
    elif engines is None:
        message = "no engines are monitored: use %gpumem engines CLIENT to monitor them"
    else:
        message = "\n".join([str(engines), *engines.running_messages])
        for ranks in engines.collect(include_partial=True):
            engines.show(ranks)
    notebook.print(*(f"ipygpumem: {line}" for line in message.splitlines()))


ENGINES = Command(
    "engines",
    "start or stop monitoring the engines of an ipyparallel.Client",
    (
        Option(
            ("client",),
            "CLIENT",
            "the ipyparallel.Client or direct view to monitor (each of its %%px cells then displays one merged "
            "report), or off to stop monitoring; without CLIENT: list the monitored engines and the running cells",
            accepts_many=True,
            usage="[CLIENT]",
        ),
        HELP,
    ),
    magic=_run,
)
