# Belljar's daemon, or one agent's box, in a container: see docs/docker.md.
#
#   make build && docker build --tag belljar .
#
# The binary is static. The base is what agents see as their host: take one that has what they need.
ARG BASE=debian:bookworm-slim
FROM ${BASE}
ARG BINARY=target/release/belljar
COPY ${BINARY} /usr/local/bin/belljar
RUN echo 'belljar:x:1000:1000::/home/belljar:/bin/sh' >>/etc/passwd \
    && echo 'belljar:x:1000:' >>/etc/group \
    && install --directory --mode 711 --owner 1000 --group 1000 /home/belljar /var/lib/belljar /workspace
USER 1000:1000
ENV BELLJAR_STATE_DIR=/var/lib/belljar
VOLUME /var/lib/belljar
WORKDIR /workspace
ENTRYPOINT ["/usr/local/bin/belljar"]
CMD ["supervisor", "start"]
