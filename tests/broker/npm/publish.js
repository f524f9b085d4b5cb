// Publishes a list of messages with a client for Node, each confirmed:
//   echo '{"url": ..., "exchange": ..., "messages": [{"routing_key": ..., "headers": ...}]}' | node publish.js amqplib

const clients = {
  async amqplib({ url, exchange, messages }) {
    const connection = await require("amqplib").connect(url);
    const channel = await connection.createConfirmChannel();
    messages.forEach((message, place) =>
      channel.publish(exchange, message.routing_key, Buffer.from(String(place)), {
        headers: message.headers ?? undefined,
        messageId: message.message_id ?? undefined,
        correlationId: message.correlation_id ?? undefined,
        timestamp: message.timestamp ?? undefined,
      }),
    );
    await channel.waitForConfirms();
    await connection.close();
  },

  async "rabbitmq-client"({ url, exchange, messages }) {
    const { Connection } = require("rabbitmq-client");
    const connection = new Connection(url);
    const publisher = connection.createPublisher({ confirm: true });
    for (const [place, message] of messages.entries()) {
      const envelope = {
        exchange,
        routingKey: message.routing_key,
        headers: message.headers ?? undefined,
        messageId: message.message_id ?? undefined,
        correlationId: message.correlation_id ?? undefined,
        timestamp: message.timestamp ?? undefined,
      };
      await publisher.send(envelope, Buffer.from(String(place)));
    }
    await publisher.close();
    await connection.close();
  },
};

const job = JSON.parse(require("node:fs").readFileSync(0, "utf-8"));
clients[process.argv[2]](job).catch((error) => {
  console.error(error);
  process.exit(1);
});
