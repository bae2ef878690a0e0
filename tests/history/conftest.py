"""The service's fixtures: a running service on a virtual GPU."""

from __future__ import annotations

from tests.serve.conftest import demo, service, stack, start_service

__all__ = ("demo", "service", "stack", "start_service")
