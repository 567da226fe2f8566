"""All tables of ``trunkline top``."""

from gateway.tools.top.fleet_views import DEPLOYMENTS, HOSTS
from gateway.tools.top.traffic_views import MODELS, REQUESTS
from gateway.tools.top.view import View

VIEWS = (DEPLOYMENTS, MODELS, HOSTS, REQUESTS)
BY_NAME: dict[str, View] = {each.name: each for each in VIEWS}
