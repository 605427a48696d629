"""etcd under test: one member or several."""
