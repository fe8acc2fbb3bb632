package main

import (
	"context"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"
)

const page = 50

// index is a hash of document ID to content: the version that the document was built for, which readers check.
type index struct {
	client redis.UniversalClient
	prefix string
	docs   int
}

// live returns the hash that readers use with strategies that rebuild in place.
func (ix index) live() string { return ix.prefix + "live" }

func (ix index) bin() string { return ix.prefix + "bin" }

func (ix index) generation(version string) string { return ix.prefix + "generation:" + version }

func (ix index) pointer() string { return ix.prefix + "pointer" }

// pages calls fn with the IDs of each page of documents.
func (ix index) pages(fn func(ids []string) error) error {
	ids := make([]string, ix.docs)
	for i := range ids {
		ids[i] = strconv.Itoa(i)
	}
	for part := range slices.Chunk(ids, page) {
		if err := fn(part); err != nil {
			return err
		}
	}
	return nil
}

func (ix index) write(ctx context.Context, hash, version string) error {
	return ix.pages(func(ids []string) error {
		return ix.client.HSet(ctx, hash, contents(ids, version)).Err()
	})
}

func contents(ids []string, version string) map[string]any {
	fields := make(map[string]any, len(ids))
	for _, id := range ids {
		fields[id] = version
	}
	return fields
}

// sight is the result of reading an index.
type sight int

const (
	complete   sight = iota // all documents, all of one version
	incomplete              // not all documents
	mixed                   // documents of several versions
)

// read reads all documents of a hash.
func (ix index) read(ctx context.Context, hash string) (sight, error) {
	versions := map[any]bool{}
	err := ix.pages(func(ids []string) error {
		found, err := ix.client.HMGet(ctx, hash, ids...).Result()
		for _, version := range found {
			versions[version] = true
		}
		return err
	})
	missing := versions[nil]
	delete(versions, nil)
	switch {
	case len(versions) > 1:
		return mixed, err
	case missing:
		return incomplete, err
	}
	return complete, err
}
