"""The jobs that ``minikafka spark`` runs; each takes a session and what it needs, and returns what it found."""
