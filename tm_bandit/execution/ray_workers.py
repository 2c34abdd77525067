"""Workers that are actors of a Ray cluster."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from typing_extensions import override

from tm_bandit._arguments import check_number
from tm_bandit.errors import InputError, brief
from tm_bandit.execution.kit import Drawn, Kit, draw, unpack
from tm_bandit.execution.workers import Workers
from tm_bandit.pull import Pull

#: Seconds in which a host has to accept a connection.
PATIENCE = 10.0


class RayWorkers(Workers):
    """Actors of a Ray cluster; each holds the samplers and the feature network.

    ``ray start --head`` starts Ray on this machine; if no ``address`` is given and none is running, one is started for
    the run and ended with it. Modules that samplers are made of must be where the actors are: call
    ``ray.init("ray://host:10001", runtime_env={"working_dir": "."})`` before a run to send them there. An actor with a
    GPU has its feature network there; let samplers be a :class:`~tm_bandit.execution.Factory` that builds on
    ``"cuda"``.

    Args:
        num_workers: how many actors.
        resources: what each of them needs, as ``{"CPU": 2, "GPU": 1, "my_resource": 1}``; one CPU by default.
        address: of the cluster, as ``ray.init`` takes it: ``"auto"``, ``"local"`` or ``"ray://host:10001"``.

    Raises:
        InputError: if Ray is not installed, or these are not resources.
    """

    def __init__(
        self, num_workers: int, resources: Mapping[str, float] | None = None, address: str | None = None
    ) -> None:
        super().__init__(num_workers)
        try:
            import ray
        except ImportError:
            raise InputError("Expected ray to be installed, but it is not; run `pip install tm-bandit[ray]`.") from None
        if resources is not None and not isinstance(resources, Mapping):
            raise InputError(f"Expected resources as {{name: amount}}, but got {resources!r}.")
        self._ray: Any = ray
        needed = {"CPU": 1} if resources is None else resources
        for name, amount in needed.items():
            check_number(f"resources[{name!r}]", amount, least=0)
        self._resources = dict(needed)
        self._address = address
        self._actors: dict[int, Any] = {}
        self._ours = False

    @override
    def open(self, kit: Kit) -> None:
        self._connect()
        for name, amount in self._resources.items():
            there = self._ray.cluster_resources().get(name, 0)
            if there < amount * self.num_workers:
                needed = f"{amount * self.num_workers:g} x {name} ({self.num_workers} workers of {amount:g})"
                self.close()
                raise InputError(
                    f"Expected a Ray cluster with {needed}, but it has {there:g}; lower workers or resources, or add "
                    "nodes."
                )
        self._token = kit.token
        try:
            self._packed = self._ray.put(self._ray.cloudpickle.dumps(kit))
        except Exception as error:
            self.close()
            kit.pack()  # names the part that cannot be sent, if it is one that pickle cannot take either
            raise InputError(f"Expected samplers that can be sent to Ray, but got {brief(error)}.") from error

    def _connect(self) -> None:
        if self._ray.is_initialized():
            return
        address = self._address
        try:
            if address in (None, "auto"):  # what Ray finds may be the record of one that has died
                address = self._ray._private.services.get_ray_address_from_environment(address, None) or "local"
            _knock(address)
            self._ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        except Exception as error:
            raise InputError(
                f"Expected a Ray cluster at {address!r}, but it does not answer ({brief(error)}); start one with "
                "`ray start --head`, or give 'local' to start one for this run."
            ) from error
        self._ours = True

    @override
    def start(self, place: int) -> Future[object]:
        if place in self._actors:
            self._ray.kill(self._actors[place])
        amounts = dict(self._resources)
        options = {"num_cpus": amounts.pop("CPU", 0), "num_gpus": amounts.pop("GPU", 0), "resources": amounts}
        actor = self._ray.remote(**options)(_Actor)
        self._actors[place] = actor.remote(self._packed, "cuda" if options["num_gpus"] else None)
        return _future(self._actors[place].ready.remote())

    @override
    def submit(self, place: int, pull: Pull) -> Future[Drawn]:
        return _future(self._actors[place].draw.remote(self._token, pull))

    @override
    def close(self) -> None:
        for actor in self._actors.values():
            self._ray.kill(actor)
        self._actors = {}
        if self._ours:
            self._ray.shutdown()
            self._ours = False


def _knock(address: str) -> None:
    """Raise ``OSError`` if nobody listens at an address: Ray would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()


def _future(reference: Any) -> Future[Any]:
    """Return the future of an answer. Ray raises a page with a traceback; its last line says what happened."""
    answer: Future[Any] = Future()

    def pass_on(done: Future[Any]) -> None:
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
        else:
            answer.set_exception(RuntimeError(str(error).strip().rpartition("\n")[2].strip()))

    reference.future().add_done_callback(pass_on)
    return answer


class _Actor:
    """What runs on the cluster."""

    def __init__(self, packed: bytes, device: str | None) -> None:
        unpack(packed, device)

    def ready(self) -> None:
        """Answer once the actor is ready."""

    def draw(self, token: str, pull: Pull) -> Drawn | None:
        """Carry out a pull."""
        return draw(token, pull)
