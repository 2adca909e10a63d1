# PostgreSQL's server, and pgbench: postgres.sh serve|ask FOLDER SERVER PORT
set -e
PATH=$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH
folder=$2 server=$3 port=$4
export PGHOST=$server PGPORT=$port PGUSER=tests PGDATABASE=postgres LC_ALL=C
case $1 in
serve)
    initdb -D "$folder/data" -U tests -A trust --no-sync --no-locale > /dev/null
    echo "host all all all trust" >> "$folder/data/pg_hba.conf"
    exec postgres -D "$folder/data" -p "$port" -k "$folder" -h "$server" -F -c log_min_messages=fatal -c dynamic_shared_memory_type=mmap
    ;;
ask)
    # The server listens before it takes sessions.
    for _ in $(seq 300); do
        pg_isready -q && break
        sleep 0.1
    done
    pgbench -i -q -s 1 2> /dev/null
    pgbench -n -S -c 4 -j 2 -t 100
    pgbench -n -C -S -c 2 -t 10
    psql -Atc "select count(*), 'rows' from pgbench_accounts"
    ;;
esac
