package router_test

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"

	"lockstep/events"
	"lockstep/events/stream"
	"lockstep/internal/redisx"
	"lockstep/router"
)

// A program follows what becomes of repositories: a consumer group, a handler, a route.
func ExampleResults() {
	server, err := redisx.StartEmbedded()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := server.Open()
	defer client.Close()
	ctx := context.Background()
	namespace := events.DefaultNamespace

	done := make(chan struct{})
	results := router.Results{Handler: func(_ context.Context, r events.Result) error {
		defer close(done)
		for _, file := range r.Files {
			fmt.Println(r.Repo, file.Status, file.Path)
		}
		return nil
	}}
	subscriber, err := stream.NewSubscriber(stream.SubscriberConfig{Redis: client, Reader: server.Open(), Prefix: string(namespace), Group: "printer"})
	if err != nil {
		panic(err)
	}
	r, err := router.New(router.Config{Routes: []router.Route{{
		Name: "print", Topic: namespace.Results(), Subscriber: subscriber, Handler: results.Handle,
	}}})
	if err != nil {
		panic(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- r.Run(ctx) }()

	publishResult(ctx, client, namespace) // as a worker does
	<-done
	fmt.Println(r.Close(), <-stopped)
	// Output:
	// acme/widgets modified README.md
	// <nil> <nil>
}

func publishResult(ctx context.Context, client redis.UniversalClient, namespace events.Namespace) {
	repo, err := events.ParseRepoPath("acme/widgets")
	if err != nil {
		panic(err)
	}
	msg, err := stream.ResultMessage(events.Result{
		ID: "c1/1-0", Type: events.ResultSynced, Source: "/lockstep/worker/w1", Repo: repo,
		Files: []events.File{{Path: "README.md", Status: events.FileModified}},
	})
	if err != nil {
		panic(err)
	}
	publisher, err := stream.NewPublisher(stream.PublisherConfig{Redis: client})
	if err != nil {
		panic(err)
	}
	msg.SetContext(ctx)
	if err := publisher.Publish(namespace.Results(), msg); err != nil {
		panic(err)
	}
}
