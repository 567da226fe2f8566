"""What ``trunkline doctor`` does: choose the checks, run them, show what they found."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import typer

from gateway.cli_support.console import note, print_json
from gateway.cli_support.hosts import registered_hosts
from gateway.domain.urls import is_own
from gateway.tools.doctor.connection import ConnectionChecks
from gateway.tools.doctor.keyed import KeyedChecks, KeyedGateway
from gateway.tools.doctor.options import DoctorOptions, HostKind
from gateway.tools.doctor.probes import ProxyChecks
from gateway.tools.doctor.report import as_json, as_lines, well
from gateway.tools.doctor.runner import CheckResult, run_checks
from gateway.tools.doctor.way import Target, Way
from shared.process.checks import Check, CheckedHost, HostChecks
from shared.process.startup import program_version

DEFAULT_URL = "http://127.0.0.1:8700"


def examine(options: DoctorOptions) -> None:
    """Run the checks that are asked for, and print what they found. Raises typer.Exit with code 1 when one
    failed, and typer.BadParameter for options that cannot be used."""
    wanted = tuple(options.on or ())
    agents = CheckedHost(options.agent_config, options.agent_state, tuple(options.engine or ()))
    hosts = _hosts(options.context, wanted, CheckedHost(options.config, options.state), agents)
    ways = _Ways(options, *_gateway(options, hosts))
    groups: dict[str, Sequence[Check]] = {}
    for kind, (module, host) in hosts.items():
        asking = replace(host, agents=ways.gateway.agents if options.key else None)
        groups[kind] = module.checks(asking)
    if not wanted or HostKind.WAY in wanted:
        groups[HostKind.WAY] = ways.checks()
    results = _run(_chosen(groups, options.only))
    titles: dict[str, str] = {
        HostKind.GATEWAY: "The gateway on this host",
        HostKind.AGENT: "The agent on this host",
        HostKind.WAY: f"The way to {ways.way.target.url}",
    }
    if options.as_json:
        print_json(as_json(results, program_version()))
    else:
        for line in as_lines(results, titles):
            typer.echo(line)
    if not all(map(well, results.values())):
        raise typer.Exit(1)


def _gateway(
    options: DoctorOptions, hosts: Mapping[str, tuple[HostChecks, CheckedHost]]
) -> tuple[str | None, Path | None]:
    """Its URL and the certificates to trust for its TLS: what the options say, else the settings of this
    host."""
    if options.url is not None or options.through is not None:
        return options.url, options.ca_file
    for module, host in hosts.values():
        if (url := module.gateway_url(host)) is not None:
            return url, options.ca_file or module.gateway_ca_file(host)
    return None, options.ca_file


def _hosts(
    context: typer.Context, wanted: Sequence[HostKind], gateway: CheckedHost, agent: CheckedHost
) -> dict[str, tuple[HostChecks, CheckedHost]]:
    """What is to be looked at of this host: the checks of each program, and where it is."""
    modules = registered_hosts(context)
    found: dict[str, tuple[HostChecks, CheckedHost]] = {}
    for kind, host in ((HostKind.GATEWAY, gateway), (HostKind.AGENT, agent)):
        if kind not in modules or (wanted and kind not in wanted):
            continue
        asked = replace(host, wanted=kind in wanted)
        if modules[kind].is_here(asked):
            found[kind] = modules[kind], asked
    return found


@dataclass
class _Ways:
    """The way that is looked at, and the one without the proxy that it leads through."""

    options: DoctorOptions
    url: str | None
    """The gateway's own, as the caller or the settings of this host say; None: not known, or not wanted."""
    ca_file: Path | None
    """Certificates to trust in place of the system's."""

    @cached_property
    def way(self) -> Way:
        return self._way_to(self.options.through or self.url or DEFAULT_URL)

    @cached_property
    def gateway(self) -> KeyedGateway:
        return KeyedGateway(self.way, self.options.key)

    def checks(self) -> list[Check]:
        asked, direct = self.options, None
        if asked.through is not None and asked.url is not None:
            direct = KeyedGateway(self._way_to(asked.url), asked.key)
        return [
            *ConnectionChecks(self.way).all(),
            *KeyedChecks(self.gateway, asked.model).all(),
            *ProxyChecks(self.gateway, asked.idle, asked.body, direct).all(),
        ]

    def _way_to(self, url: str) -> Way:
        try:
            target = Target.of(url)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
        key = self.options.key or ""
        if not (key.isascii() and key.isprintable()):
            raise typer.BadParameter("the key holds characters that no key has: was it copied right?")
        if key and not target.secure and not is_own(target.host):
            raise typer.BadParameter(f"a key is not sent over plain HTTP to {target.host}: write https://")
        return Way(target, dict(os.environ), self.ca_file)


def _chosen(groups: dict[str, Sequence[Check]], only: Sequence[str] | None) -> dict[str, Sequence[Check]]:
    """Those that were asked for, with what they come after."""
    if not only:
        return groups
    by_id = {check.id: check for checks in groups.values() for check in checks}
    if unknown := [each for each in only if each not in by_id]:
        known = ", ".join(by_id)
        raise typer.BadParameter(f"{unknown[0]!r} is no check here; there are: {known}", param_hint="--only")
    needed, further = set[str](), list(only)
    while further:
        name = further.pop()
        if name not in needed and name in by_id:
            needed.add(name)
            further.extend(by_id[name].after)
    chosen = {kind: [each for each in checks if each.id in needed] for kind, checks in groups.items()}
    return {kind: checks for kind, checks in chosen.items() if checks}


def _run(groups: Mapping[str, Sequence[Check]]) -> dict[str, list[CheckResult]]:
    """All at once: ids are different in all groups."""
    checks = [check for each in groups.values() for check in each]
    note(f"{len(checks)} checks run; some wait on purpose.")
    results = {each.id: each for each in run_checks(checks)}
    return {kind: [results[each.id] for each in each_checks] for kind, each_checks in groups.items()}
