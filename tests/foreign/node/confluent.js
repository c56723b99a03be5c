// Runs one scenario with @confluentinc/kafka-javascript: node confluent.js SCENARIO BOOTSTRAP TOPIC.
// It prints what tests/foreign/test_go_and_node.py asserts on, and exits with 1 and a reason when a check fails.
'use strict'
const assert = require('node:assert')
const { setTimeout: sleep } = require('node:timers/promises')
const { KafkaJS } = require('@confluentinc/kafka-javascript')

const [scenario, bootstrap, topic] = process.argv.slice(2)
const kafka = new KafkaJS.Kafka({ kafkaJS: { brokers: bootstrap.split(','), logLevel: KafkaJS.logLevel.NOTHING } })
// zstd is there only if its library was, when the package was built.
const codecs = { none: 'None', gzip: 'GZIP', snappy: 'SNAPPY', lz4: 'LZ4' }

async function producing({ compression = 'None', acks = -1, idempotent = false }, use) {
  const settings = { acks, idempotent, compression: KafkaJS.CompressionTypes[compression] }
  const producer = kafka.producer({ kafkaJS: settings })
  await producer.connect()
  await use((messages) => producer.send({ topic, messages }))
  await producer.disconnect()
}

// Joins a group and collects what it reads.
async function join(groupId, assignor) {
  const settings = { groupId, fromBeginning: true, autoCommitInterval: 100 }
  const consumer = kafka.consumer({ kafkaJS: settings, 'partition.assignment.strategy': assignor })
  const member = { values: [], assigned: () => consumer.assignment().length, leave: () => consumer.disconnect() }
  await consumer.connect()
  await consumer.subscribe({ topics: [topic] })
  await consumer.run({ eachMessage: async ({ message }) => void member.values.push(String(message.value)) })
  return member
}

async function until(holds, what) {
  for (const end = Date.now() + 60000; !holds(); await sleep(20)) assert(Date.now() < end, `${what}: not within 60 s`)
}

const messagesOf = (prefix, count) =>
  Array.from({ length: count }, (_, each) => ({ key: `${each}`, value: `${prefix}-${each}` }))

async function produce() {
  const wanted = []
  for (const [codec, compression] of Object.entries(codecs)) {
    for (const acks of [-1, 1, 0]) {
      const messages = messagesOf(`${'x'.repeat(200)}-${codec}-${acks}`, 20)
      wanted.push(...messages.map((each) => each.value))
      await producing({ compression, acks, idempotent: acks === -1 }, (send) => send(messages))
    }
  }
  const reader = await join(`readers-of-${topic}`, 'range')
  await until(() => reader.values.length >= wanted.length, 'all records are read')
  await reader.leave()
  assert.deepStrictEqual(reader.values.sort(), wanted.sort())
  console.log(wanted.length)
}

async function group(assignor) {
  const groupId = `group-of-${topic}`
  await producing({}, (send) => send(messagesOf('old', 40)))
  const first = await join(groupId, assignor)
  await until(() => first.values.length >= 40, 'the first member reads')
  const second = await join(groupId, assignor)
  await until(() => first.assigned() === 2 && second.assigned() === 2, 'two members share four partitions')
  await first.leave()
  await second.leave()
  await producing({}, (send) => send(messagesOf('new', 40)))
  const third = await join(groupId, assignor)
  await until(() => third.values.length >= 40, 'the third member reads')
  await third.leave()
  const all = [...first.values, ...second.values, ...third.values]
  assert(third.values.every((value) => value.startsWith('new')), 'a committed record was read again')
  console.log(new Set(all).size, all.length)
}

async function offsets() {
  const start = 1700000000000
  await producing({}, async (send) => {
    for (const second of [0, 1, 2]) {
      await send([{ partition: 0, value: 'x', timestamp: `${start + 1000 * second}` }])
    }
  })
  const admin = kafka.admin()
  await admin.connect()
  const offsetIn = async (found) => (await found).find((each) => each.partition === 0).offset
  const first = await offsetIn(admin.fetchTopicOffsetsByTimestamp(topic, start + 500))
  console.log(first, await offsetIn(admin.fetchTopicOffsets(topic)))
  await admin.disconnect()
}

async function administer() {
  const admin = kafka.admin()
  await admin.connect()
  const create = (numPartitions) => admin.createTopics({ topics: [{ topic, numPartitions, replicationFactor: 3 }] })
  const described = async () => (await admin.fetchTopicMetadata({ topics: [topic] }))[0].partitions
  assert(await create(3))
  assert(!(await create(3)), 'created twice')
  assert((await admin.listTopics()).includes(topic))
  assert.strictEqual((await described()).length, 3)
  assert.strictEqual((await described())[0].replicas.length, 3)
  await producing({}, (send) => send(messagesOf('old', 20)))
  await admin.deleteTopicRecords({ topic, partitions: [{ partition: 0, offset: '1' }] })
  const low = (await admin.fetchTopicOffsets(topic)).find((each) => each.partition === 0).low
  assert.strictEqual(low, '1')
  await admin.deleteTopics({ topics: [topic] })
  assert(await create(1))
  await producing({}, (send) => send([{ value: 'new' }]))
  console.log((await described()).length)
  await admin.disconnect()
}

// 3,000 numbered records; the test kills the leader when it reads the first line.
async function numbers() {
  await producing({ idempotent: true }, async (send) => {
    for (let number = 0; number < 3000; number += 20) {
      await send(Array.from({ length: 20 }, (_, each) => ({ value: `${number + each}` })))
      if (number === 1000) console.log('half')
    }
  })
  console.log('done')
}

const scenarios = {
  produce,
  offsets,
  numbers,
  admin: administer,
  eager: () => group('range'),
  cooperative: () => group('cooperative-sticky'),
}
scenarios[scenario]().then(
  () => process.exit(0),
  (error) => {
    console.error(error)
    process.exit(1)
  }
)
