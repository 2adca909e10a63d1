/* UCX's listener and its client, by UCX's own interface: UCX listens at one port with rdma_cm and with TCP. Arguments: the port, and of the server the
 * number of clients, of a client the server's address. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include "test.h"

enum { PING = 1, PONG = 2, SECONDS = 40 };

static ucp_worker_h worker;
static ucp_conn_request_h requested;
static int gone;

static void connected(ucp_conn_request_h request, void *context)
{
	(void)context;
	requested = request;
}

static void failed(void *context, ucp_ep_h end, ucs_status_t status)
{
	(void)context, (void)end, (void)status;
	gone = 1;
}

/* Makes progress until something is there. */
static void until(const int *there)
{
	time_t began = time(NULL);
	while (!*(const volatile int *)there) {
		CHECK(time(NULL) - began < SECONDS);
		ucp_worker_progress(worker);
	}
}

static ucs_status_t finish(void *request)
{
	if (!request)
		return UCS_OK;
	CHECK(!UCS_PTR_IS_ERR(request));
	time_t began = time(NULL);
	ucs_status_t status;
	while ((status = ucp_request_check_status(request)) == UCS_INPROGRESS) {
		CHECK(time(NULL) - began < SECONDS);
		ucp_worker_progress(worker);
	}
	ucp_request_free(request);
	return status;
}

static void send_number(ucp_ep_h end, ucp_tag_t tag, uint64_t number)
{
	ucp_request_param_t none = { 0 };
	CHECK(finish(ucp_tag_send_nbx(end, &number, sizeof number, tag, &none)) == UCS_OK);
}

static uint64_t receive_number(ucp_tag_t tag)
{
	uint64_t number = 0;
	ucp_request_param_t none = { 0 };
	CHECK(finish(ucp_tag_recv_nbx(worker, &number, sizeof number, tag, ~0ull, &none)) == UCS_OK);
	return number;
}

static void close_end(ucp_ep_h end)
{
	ucp_request_param_t force = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };
	finish(ucp_ep_close_nbx(end, &force));
}

static ucp_ep_params_t end_params(void)
{
	return (ucp_ep_params_t) {
		.field_mask = UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE,
		.err_mode = UCP_ERR_HANDLING_MODE_PEER, .err_handler.cb = failed,
	};
}

static void serve(const struct sockaddr_in *at, int clients)
{
	ucp_listener_params_t params = {
		.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
		.sockaddr = { .addr = (const struct sockaddr *)at, .addrlen = sizeof *at }, .conn_handler.cb = connected,
	};
	ucp_listener_h listener;
	ucs_status_t status = ucp_listener_create(worker, &params, &listener);
	if (status != UCS_OK)
		fprintf(stderr, "%s\n", ucs_status_string(status));
	CHECK(status == UCS_OK);
	puts("listening");
	fflush(stdout);
	for (int served = 0; served < clients; served++) {
		time_t began = time(NULL);
		while (!requested) {
			CHECK(time(NULL) - began < SECONDS);
			ucp_worker_progress(worker);
		}
		gone = 0;
		ucp_ep_params_t ep = end_params();
		ep.field_mask |= UCP_EP_PARAM_FIELD_CONN_REQUEST;
		ep.conn_request = requested;
		requested = NULL;
		ucp_ep_h end;
		CHECK(ucp_ep_create(worker, &ep, &end) == UCS_OK);
		send_number(end, PONG, receive_number(PING) + 1);
		until(&gone);
		close_end(end);
	}
	ucp_listener_destroy(listener);
}

static void call(const struct sockaddr_in *to)
{
	ucp_ep_params_t ep = end_params();
	ep.field_mask |= UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
	ep.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
	ep.sockaddr.addr = (const struct sockaddr *)to;
	ep.sockaddr.addrlen = sizeof *to;
	ucp_ep_h end;
	CHECK(ucp_ep_create(worker, &ep, &end) == UCS_OK);
	send_number(end, PING, 41);
	CHECK(receive_number(PONG) == 42);
	CHECK(!gone);
	close_end(end);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])) };
	ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_TAG };
	ucp_context_h context;
	CHECK(ucp_init(&params, NULL, &context) == UCS_OK);
	ucp_worker_params_t of_worker = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE, .thread_mode = UCS_THREAD_MODE_SINGLE,
	};
	CHECK(ucp_worker_create(context, &of_worker, &worker) == UCS_OK);
	if (inet_pton(AF_INET, argv[2], &address.sin_addr) == 1)
		call(&address);
	else
		serve(&address, atoi(argv[2]));
	ucp_worker_destroy(worker);
	ucp_cleanup(context);
	puts("done");
	return 0;
}
