package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.etcd.io/etcd/server/v3/embed"
)

// etcdLock is the mutex of etcd's package concurrency, which is fair. Each waiter has a session, as the mutex of a session is
// one waiter. One of the processes also runs the server, with its defaults: it flushes each write to disk. It gives its URL to the
// others by a key in Redis, and ends when they have closed the lock.
type etcdLock struct {
	redis  *redis.Client
	key    string
	client *clientv3.Client
	server func() // nil in the other processes

	mu   sync.Mutex
	free []*concurrency.Session
}

func openEtcd(ctx context.Context, redisURL, key string) (lock, error) {
	l := &etcdLock{key: key}
	var err error
	if l.redis, err = openGoRedis(ctx, redisURL); err != nil {
		return nil, err
	}
	if err := l.redis.Incr(ctx, l.usersKey()).Err(); err != nil {
		return nil, err
	}
	first, err := l.redis.SetNX(ctx, l.key+":etcd", "", time.Hour).Result()
	if err != nil {
		return nil, err
	}
	var at string
	if first {
		if at, l.server, err = startEtcd(); err != nil {
			return nil, err
		}
		if err := l.redis.Set(ctx, l.key+":etcd", at, time.Hour).Err(); err != nil {
			return nil, err
		}
	}
	for at == "" {
		if at, err = l.redis.Get(ctx, l.key+":etcd").Result(); err != nil {
			return nil, err
		}
		if at == "" {
			time.Sleep(10 * time.Millisecond)
		}
	}
	l.client, err = clientv3.New(clientv3.Config{Endpoints: []string{at}, DialTimeout: 5 * time.Second})
	return l, err
}

func (l *etcdLock) usersKey() string { return l.key + ":etcd-users" }

func (l *etcdLock) acquire(ctx context.Context) (func() error, error) {
	session, err := l.session()
	if err != nil {
		return nil, err
	}
	mutex := concurrency.NewMutex(session, "/"+l.key)
	if err := mutex.Lock(ctx); err != nil {
		return nil, err
	}
	return func() error {
		err := mutex.Unlock(context.Background())
		l.mu.Lock()
		defer l.mu.Unlock()
		l.free = append(l.free, session)
		return err
	}, nil
}

// session returns one that no waiter has.
func (l *etcdLock) session() (*concurrency.Session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.free); n > 0 {
		session := l.free[n-1]
		l.free = l.free[:n-1]
		return session, nil
	}
	return concurrency.NewSession(l.client)
}

// gaveUp returns false: the mutex waits until it is locked.
func (*etcdLock) gaveUp(error) bool { return false }

// Close closes the client. The process with the server waits for the others.
func (l *etcdLock) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	users, err := l.redis.Decr(ctx, l.usersKey()).Result()
	if l.server == nil {
		return errors.Join(err, l.client.Close())
	}
	for users > 0 && err == nil {
		time.Sleep(10 * time.Millisecond)
		users, err = l.redis.Get(ctx, l.usersKey()).Int64()
	}
	err = errors.Join(err, l.client.Close())
	l.server()
	return err
}

// startEtcd starts a server with one member.
func startEtcd() (at string, stop func(), err error) {
	dir, err := os.MkdirTemp("", "lockstep-bench-etcd-")
	if err != nil {
		return "", nil, err
	}
	config := embed.NewConfig()
	config.Dir, config.LogLevel = dir, "panic"
	for _, urls := range []*[]url.URL{&config.ListenClientUrls, &config.ListenPeerUrls} {
		address, err := freeAddress()
		if err != nil {
			return "", nil, err
		}
		*urls = []url.URL{{Scheme: "http", Host: address}}
	}
	config.AdvertiseClientUrls, config.AdvertisePeerUrls = config.ListenClientUrls, config.ListenPeerUrls
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	server, err := embed.StartEtcd(config)
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(dir))
	}
	stop = func() {
		server.Close()
		_ = os.RemoveAll(dir)
	}
	select {
	case <-server.Server.ReadyNotify():
		return config.ListenClientUrls[0].String(), stop, nil
	case <-time.After(30 * time.Second):
		stop()
		return "", nil, fmt.Errorf("etcd does not start")
	}
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
