"""The Helm chart and the plain manifests: valid for the API, with no permission that nobody needs."""

from __future__ import annotations

import filecmp
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.tools import DEPLOY
from tests.needs import find_program, needs
from vram.host.local.workload import _runtime_files
from vram.serve import config

pytestmark = [
    needs("yaml"),
    needs("kubernetes_validate"),
]

CHART = DEPLOY / "helm" / "vram"
PLAIN = DEPLOY / "kubernetes"
MANIFESTS = sorted(path.name for path in PLAIN.glob("*.yaml"))
VERSIONS = ("1.25", "1.28", "1.31", "1.34", "1.37")
READS, ENTERS, ACTS = {"SYS_PTRACE", "DAC_READ_SEARCH"}, {"SETUID", "SETGID"}, {"KILL"}


def documents(text: str) -> list[dict[str, Any]]:
    import yaml

    return [each for each in yaml.safe_load_all(text) if each]


def plain(name: str) -> list[dict[str, Any]]:
    return documents((PLAIN / name).read_text())


def render(*settings: str) -> list[dict[str, Any]]:
    words = [word for each in settings for word in ("--set", each)]
    return documents(helm("template", "vram", str(CHART), "--namespace", "vram", *words).stdout)


def helm(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    program = find_program("helm")
    assert program is not None
    return subprocess.run([program, *words], capture_output=True, text=True, check=check)


def one(objects: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (found,) = (each for each in objects if each["kind"] == kind)
    return found


def pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = one(objects, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def container(objects: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = pod(objects)["containers"]
    return dict(found)


def validate(objects: list[dict[str, Any]], version: str) -> None:
    import kubernetes_validate

    for each in objects:
        if each["apiVersion"] != "monitoring.coreos.com/v1":  # the operator's own, not the API's
            kubernetes_validate.validate(each, version, strict=True)


# ---- valid ----


@pytest.mark.parametrize("version", VERSIONS)
def test_the_plain_manifests_are_what_the_api_takes(version: str) -> None:
    assert len(MANIFESTS) == 6
    for name in MANIFESTS:
        validate(plain(name), version)


def test_a_field_that_the_api_does_not_know_is_found() -> None:
    """The validation can fail: strict, to the deepest field."""
    import kubernetes_validate

    objects = plain("observer.yaml")
    container(objects)["securityContext"]["allowPrivilegeEscalations"] = False
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(objects, VERSIONS[-1])


@needs("helm")
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("readOpenFiles=false", "containerRuntime=none", "runtimeClassName=", "metrics.annotations=false"),
        ("containerRuntime=k3s", "events.enabled=true", "metrics.podMonitor.enabled=true"),
        ("containerRuntime=cri-o", "actor.enabled=true", "imagePullSecrets[0].name=x", "priorityClassName=y"),
    ],
)
def test_whatever_is_chosen_the_chart_makes_what_the_api_takes(settings: tuple[str, ...]) -> None:
    objects = render(*settings)
    for version in (VERSIONS[0], VERSIONS[-1]):
        validate(objects, version)


@needs("helm")
def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART)).stdout


@needs("helm")
def test_a_value_that_cannot_be_meant_is_refused() -> None:
    for wrong in ("interval=often", "containerRuntime=docker", "actor.enable=true", "commands=sometimes"):
        answer = helm("template", "vram", str(CHART), "--set", wrong, check=False)
        assert answer.returncode != 0, wrong
        assert wrong.partition("=")[0].partition(".")[0] in answer.stderr


@needs("helm")
def test_the_plain_manifests_are_the_charts(tmp_path: Path) -> None:
    program = find_program("helm")
    assert program is not None
    subprocess.run([PLAIN / "render", tmp_path], check=True, env={**os.environ, "HELM": program})
    made = sorted(path.name for path in tmp_path.iterdir())
    assert made == [name for name in MANIFESTS if name != "namespace.yaml"]
    _, different, missing = filecmp.cmpfiles(PLAIN, tmp_path, made, shallow=False)
    assert not different + missing, "deploy/kubernetes/render writes them again"


# ---- the least that is needed ----


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name.startswith(("observer", "actor"))])
def test_no_pod_has_more_than_it_needs(name: str) -> None:
    spec, one_container = pod(plain(name)), container(plain(name))
    security = one_container["securityContext"]
    assert spec["hostPID"] is True
    assert not spec.get("hostNetwork")
    assert not spec.get("hostIPC")
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (security["privileged"], security["allowPrivilegeEscalation"]) == (False, False)
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"]["drop"] == ["ALL"]
    assert "nvidia.com/gpu" not in str(one_container["resources"]), "a GPU that is requested is nobody else's"
    writable = [each for each in one_container["volumeMounts"] if not each.get("readOnly")]
    assert [each["mountPath"] for each in writable] == (["/var/lib/vram"] if name == "actor.yaml" else [])


@pytest.mark.parametrize(
    ("name", "added"),
    [
        ("observer.yaml", READS | ENTERS),
        ("observer-events.yaml", READS | ENTERS),
        ("observer-unprivileged.yaml", set()),
        ("actor.yaml", READS | ENTERS | ACTS),
    ],
)
def test_capabilities_are_those_of_the_guide(name: str, added: set[str]) -> None:
    found = container(plain(name))
    assert set(found["securityContext"]["capabilities"].get("add", ())) == added
    assert ("--observe" in found["command"]) == (name != "actor.yaml")
    if name == "observer-unprivileged.yaml":
        assert found["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name.startswith(("observer", "actor"))])
def test_a_token_is_there_only_for_events_and_may_only_write_them(name: str) -> None:
    objects = plain(name)
    events = name in ("observer-events.yaml", "actor.yaml")
    assert pod(objects)["automountServiceAccountToken"] is events
    roles = [each for each in objects if each["kind"] == "ClusterRole"]
    rules = [rule for role in roles for rule in role["rules"]]
    wanted = [{"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]}]
    assert rules == (wanted if events else [])
    if events:
        account = one(objects, "ServiceAccount")["metadata"]["name"]
        assert pod(objects)["serviceAccountName"] == account
        assert [each["name"] for each in one(objects, "ClusterRoleBinding")["subjects"]] == [account]


# ---- it fits the program ----


@pytest.mark.parametrize("name", [name for name in MANIFESTS if name.startswith(("observer", "actor"))])
def test_the_service_takes_the_configuration(name: str) -> None:
    objects = plain(name)
    text = one(objects, "ConfigMap")["data"]["serve.toml"]
    read = config.parse(text.encode(), name)
    assert read.socket.enabled is False
    assert read.show.commands == "never"
    assert read.kubernetes.events is (name in ("observer-events.yaml", "actor.yaml"))
    assert not read.policy
    (port,) = (address.port for address in read.http.addresses)
    assert [each["containerPort"] for each in container(objects)["ports"]] == [port]
    annotations = one(objects, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(port)


@needs("helm")
def test_policies_of_the_actor_reach_the_service() -> None:
    policies = '[[policy]]\nname = "first"\ndo = "end-leftovers"\n'
    objects = render("actor.enabled=true", f"actor.policies={policies}")
    text = one(objects, "ConfigMap")["data"]["serve.toml"]
    assert config.parse(text.encode(), "serve.toml").policy == ({"name": "first", "do": "end-leftovers"},)


@needs("helm")
@pytest.mark.parametrize("runtime", ["containerd", "k3s", "cri-o"])
def test_pods_are_named_from_the_folder_that_is_mounted(runtime: str) -> None:
    """And its socket, which is as good as root, is not below that folder."""
    objects = render(f"containerRuntime={runtime}")
    (path,) = (each["hostPath"]["path"] for each in pod(objects)["volumes"] if "hostPath" in each)
    (mount,) = (each for each in container(objects)["volumeMounts"] if each["name"] == "runtime-files")
    assert mount["mountPath"] == path
    number = "ab" * 32
    assert any(f"/{each}".startswith(f"{path}/{number}/") for each in _runtime_files(number))
    assert not re.fullmatch(r"/run/(k3s/)?containerd|/run|/run/crio", path)


def test_the_pod_monitor_finds_the_pods() -> None:
    monitor = one(plain("podmonitor.yaml"), "PodMonitor")["spec"]
    daemon = one(plain("observer.yaml"), "DaemonSet")["spec"]
    assert monitor["selector"] == daemon["selector"]
    ports = [each["name"] for each in container(plain("observer.yaml"))["ports"]]
    assert [each["port"] for each in monitor["podMetricsEndpoints"]] == ports
