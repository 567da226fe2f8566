"""Engines that reject the option by which a stream tells its usage are asked again without it.

It is the gateway that adds ``stream_options`` (:mod:`gateway.domain.json_members`), so no client shall get
the error that an engine makes of it. An engine that answers 400 or 422 is sent the same request without the
option, once; if that is taken, by whomever, the deployment is remembered, and asked without it from then on.
One that has taken the option before is not asked again: what it rejects is something else. The memory lasts
as long as the deployment does, until it is loaded anew or its agent's session ends.
"""

from gateway.domain.json_members import option_in_front
from gateway.domain.request import Request
from gateway.fleet.deployment import Deployment
from shared.protocol.messages import UsageMode

REJECTIONS = (400, 422)


def is_rejected(request: Request, deployment: Deployment, status: int) -> bool:
    """Whether ``status`` may be for the option, which has been left out of ``request`` then."""
    if status not in REJECTIONS or deployment.takes_usage_option is not None:
        return False
    return request.body.rest is None and leave_out(request)


def note_taken(request: Request, deployment: Deployment, rejecting: Deployment | None) -> None:
    """``deployment`` answers ``request``, which ``rejecting`` seemed to reject for the option."""
    if rejecting is not None:
        rejecting.takes_usage_option = False
    elif deployment.takes_usage_option is None and request.usage is UsageMode.STRIP:
        deployment.takes_usage_option = option_in_front(request.body.pieces) is not None or None


def leave_out(request: Request) -> bool:
    """Leave the option out, for a deployment that is known to reject it. False when it is the client's own,
    or the body is on its way already."""
    body = request.body
    if request.usage is not UsageMode.STRIP or body.rest_begun:
        return False
    place = option_in_front(body.pieces)
    if place is None:
        return False
    body.edit([(*place, b"")])
    length = ("content-length", str(body.size_bytes))
    if body.size_bytes is not None:
        request.headers = tuple(length if field[0] == length[0] else field for field in request.headers)
    return True
