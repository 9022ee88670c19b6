#!/bin/sh
# A world of a test's own, made in namespaces that the caller has entered already: a network that is nothing but a
# loopback with public-looking addresses on it, a name server and an authority that everybody in it trusts. Nothing can
# leave it, whatever fails. Runs the program it is given as the user it is given, and ends with it.
#   world.sh UID GID CLIENTS PROGRAM [ARGUMENT…]
set -eu

uid=$1 gid=$2 clients=$3
shift 3

ip link set lo up
# Hosts with a rule and without; a name server of the world's; a private one and the metadata address of clouds.
for address in 93.184.216.34 93.184.216.35 8.8.8.8 10.9.8.7 169.254.169.254; do
    ip address add "$address/32" dev lo
done
ip address add 2606:2800:220:1::1/128 dev lo nodad
ip address add 2606:2800:220:1::2/128 dev lo nodad
# Servers of the world need no privilege for their well-known ports, nor does a ping.
echo 0 >/proc/sys/net/ipv4/ip_unprivileged_port_start
if [ "${WORLD_OF_ROOT-}" = yes ]; then groups='0 2147483647'; else groups='0 0'; fi
echo "$groups" >/proc/sys/net/ipv4/ping_group_range

mount -t tmpfs -o mode=0755 world /mnt
mkdir -p /mnt/clients /mnt/world
mount --bind "$clients" /mnt/clients
# An image for boxes: the host's programs and the clients, and nothing of its settings.
image=/mnt/image
mkdir -p $image/usr $image/etc $image/var/tmp $image/mnt/clients
mount --rbind /usr $image/usr
mount --bind "$clients" $image/mnt/clients
for name in bin sbin lib lib64; do
    [ ! -e /usr/$name ] || ln -s usr/$name $image/$name
done
for name in alternatives ld.so.cache; do
    [ ! -e /etc/$name ] || cp -a /etc/$name $image/etc/
done
cd /mnt/world

quietly() { "$@" >log 2>&1 || { cat log >&2; exit 1; }; }
key() { quietly openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }
key authority.key
quietly openssl req -x509 -new -key authority.key -days 2 -subj '/CN=World authority' -out authority.pem \
    -addext 'basicConstraints=critical,CA:TRUE' -addext 'keyUsage=critical,keyCertSign'
key server.key
quietly openssl req -new -key server.key -subj '/CN=World server' -out server.csr
printf '%s\n' 'basicConstraints=critical,CA:FALSE' 'extendedKeyUsage=serverAuth' 'subjectAltName=@names' '[names]' \
    'DNS.1=*.example.com' 'DNS.2=example.com' 'DNS.3=api.openai.com' 'DNS.4=api.anthropic.com' \
    'DNS.5=generativelanguage.googleapis.com' 'DNS.6=localhost' 'DNS.7=*.wild.example.com' \
    'IP.1=93.184.216.34' 'IP.2=93.184.216.35' 'IP.3=2606:2800:220:1::1' 'IP.4=2606:2800:220:1::2' \
    'IP.5=10.9.8.7' 'IP.6=127.0.0.1' >server.cnf
quietly openssl x509 -req -in server.csr -CA authority.pem -CAkey authority.key -CAcreateserial -days 2 \
    -extfile server.cnf -out server.pem
chmod 644 server.key

printf 'nameserver 127.0.0.1\n' >resolv.conf
printf '127.0.0.1 localhost\n::1 localhost\n' >hosts
{ cat /etc/passwd; echo "belljar-tester:x:$uid:$gid:Belljar tester:/mnt/world:/bin/sh"; } >passwd
cover() {
    covered=$(readlink -f "$2") && [ -f "$covered" ] || return 0
    mount --bind "$1" "$covered"
}
cover resolv.conf /etc/resolv.conf
cover hosts /etc/hosts
cover passwd /etc/passwd
for bundle in /etc/ssl/certs/ca-certificates.crt /etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem; do
    cover authority.pem "$bundle"
done
chmod 1777 /mnt/world
cd /

if [ "$(id -u)" = "$uid" ] || [ "${WORLD_OF_ROOT-}" = yes ]; then
    "$@"
else
    # Root here is root of a namespace alone; the program is to be the user that it really is.
    unshare --user --map-user="$uid" --map-group="$gid" -- "$@"
fi
