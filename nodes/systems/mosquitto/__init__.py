"""Eclipse Mosquitto under test: an MQTT broker."""
