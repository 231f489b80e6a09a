"""Worker processes whose only login is a certificate."""

from __future__ import annotations

import trustme

from tests.brokers.rabbitmq import Node
from tests.brokers.rabbitmq_place import RabbitmqPlace
from tests.fleet.kit import LIGHT, Fleet


def test_a_certificate_is_a_login_and_a_wrong_one_ends_with_78(
    rabbitmq_node: Node, rabbitmq_place: RabbitmqPlace, fleet: Fleet
) -> None:
    """Its job is done without a password anywhere; the other says what is wrong, and nothing of its key."""
    fleet.send_all({"job": {}})
    with rabbitmq_node.listener_for_certificates("tlsv1.3") as port:

        def url(authority: trustme.CA) -> str:
            file = fleet.folder / f"{id(authority)}.pem"
            made = authority.issue_cert("worker.example", common_name=rabbitmq_place.vhost.user)
            made.private_key_and_cert_chain_pem.write_to_path(file)
            where = f"amqps://127.0.0.1:{port}/{rabbitmq_place.vhost.name}"
            return f"{where}?cafile={rabbitmq_node.ca_file}&certfile={file}"

        foreign = trustme.CA()
        refused = fleet.worker(LIGHT, broker=url(foreign))
        refused.ended(78)
        log = refused.log.read_text()
        assert "_ALERT_" in log
        assert "certfile" in log
        assert "PRIVATE KEY" not in log
        key = (fleet.folder / f"{id(foreign)}.pem").read_text().splitlines()[1]
        assert key not in log
        fleet.worker(LIGHT, broker=url(rabbitmq_node.ca))
        fleet.ends_clean("job")
