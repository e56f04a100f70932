"""The manifests are what Kubernetes takes, and let the containers do little."""

from __future__ import annotations

from typing import Any, Final

import pytest
from devices import DEPLOY

K3S: Final = DEPLOY / "k3s"
VERSIONS: Final = ("1.31", "1.35")

yaml = pytest.importorskip("yaml")
validating = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")


def load(name: str) -> dict[str, Any]:
    found = yaml.safe_load((K3S / name).read_text())
    assert isinstance(found, dict)
    return found


KUSTOMIZATION: Final = load("kustomization.yaml")


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", KUSTOMIZATION["resources"])
def test_kubernetes_takes_it(name: str, version: str) -> None:
    validating.validate(load(name), version, strict=True)


def test_what_is_wrong_would_be_found() -> None:
    broken = load("daemonset.yaml")
    broken["spec"]["template"]["spec"]["hostNetwork"] = "yes, please"
    with pytest.raises(validating.ValidationError):
        validating.validate(broken, VERSIONS[0], strict=True)


def test_the_kustomization_names_all_there_is() -> None:
    assert {*KUSTOMIZATION["resources"], "kustomization.yaml"} == {path.name for path in K3S.iterdir()}
    pod = load("daemonset.yaml")["spec"]["template"]["spec"]
    images = {container["image"] for container in [*pod["initContainers"], *pod["containers"]]}
    assert images == {image["name"] for image in KUSTOMIZATION["images"]}
    assert load("namespace.yaml")["metadata"]["name"] == KUSTOMIZATION["namespace"]


def test_containers_can_do_little() -> None:
    pod = load("daemonset.yaml")["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is pod["automountServiceAccountToken"] is False
    for container in [*pod["initContainers"], *pod["containers"]]:
        context = container["securityContext"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"]["drop"] == ["ALL"]
        assert context.get("runAsNonRoot") or container["name"] == "own-state"


def test_the_join_string_is_in_no_command_line() -> None:
    text = (K3S / "daemonset.yaml").read_text()
    assert "epj1" not in text
    assert "--stdin" in text


def test_the_image_has_the_user_that_the_pods_run_as() -> None:
    containerfile = (DEPLOY / "container/Containerfile").read_text()
    pod = load("daemonset.yaml")["spec"]["template"]["spec"]
    assert f"USER {pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" in containerfile
