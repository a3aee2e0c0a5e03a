"""A gateway beside one broker: it speaks the Kafka protocol to clients."""

from tideline import kafka as kafka  # before kio
