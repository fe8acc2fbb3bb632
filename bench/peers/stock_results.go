package main

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
)

// document is a CloudEvents document as Lockstep's changes and results are.
type document[T any] struct {
	SpecVersion     string    `json:"specversion"`
	ID              string    `json:"id"`
	Source          string    `json:"source"`
	Type            string    `json:"type"`
	Subject         string    `json:"subject"`
	Time            time.Time `json:"time"`
	DataContentType string    `json:"datacontenttype"`
	Data            T         `json:"data"`
}

type changeData struct {
	Repo string `json:"repo"`
	URL  string `json:"url"`
	Ref  string `json:"ref"`
}

type resultData struct {
	Repo       string       `json:"repo"`
	Ref        string       `json:"ref"`
	Deliveries []string     `json:"deliveries"`
	TookMS     int64        `json:"took_ms"`
	After      string       `json:"after"`
	Path       string       `json:"path"`
	Tree       string       `json:"tree"`
	Files      []resultFile `json:"files"`
}

type resultFile struct {
	Path   string `json:"path"`
	Status string `json:"status"`
}

func newDocument[T any](kind, id, repo string, data T) ([]byte, error) {
	return json.Marshal(document[T]{
		SpecVersion: "1.0", ID: id, Source: "/lockstep/bench", Type: kind, Subject: repo,
		Time: time.Now().UTC(), DataContentType: "application/json", Data: data,
	})
}

func newChange(event, repo string) ([]byte, error) {
	return newDocument("lockstep.change.pushed.v1", event, repo,
		changeData{Repo: repo, URL: "https://example.com/" + repo + ".git", Ref: "refs/heads/main"})
}

func readChange(payload []byte) (repo, url string, err error) {
	var change document[changeData]
	err = json.Unmarshal(payload, &change)
	return change.Data.Repo, change.Data.URL, err
}

// publish publishes the result of an event and writes the repository's state.
func (s settings) publish(ctx context.Context, client redis.UniversalClient, publisher message.Publisher, event, repo, url string) error {
	commit := strings.Repeat("0", 40-len(event)) + event
	payload, err := newDocument("lockstep.result.synced.v1", event+"/result", repo, resultData{
		Repo: repo, Ref: "refs/heads/main", Deliveries: []string{event}, After: commit, Path: repo,
		Tree: ".lockstep/repos/" + repo + "/trees/" + commit, Files: []resultFile{{Path: "a.txt", Status: "modified"}},
	})
	if err != nil {
		return err
	}
	if err := publisher.Publish(s.prefix+"results", message.NewMessage(event+"/result", payload)); err != nil {
		return err
	}
	return client.HSet(ctx, s.prefix+"repo:"+repo, "repo", repo, "url", url, "synced", time.Now().UTC().Format(time.RFC3339Nano),
		"head:refs/heads/main", commit, "given:refs/heads/main:", commit).Err()
}
